"""Short ways to write down connections, access networks, and what `doctor` examines."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path

from immutables import Map

from mptcp_throttle.config.load import load_config
from mptcp_throttle.findings import Host
from mptcp_throttle.model import AccessNetwork, Connection, Endpoint, FourTuple, Per, RateKind, Subflow, Token
from mptcp_throttle.units import Rate
from mptcp_throttled.vocabulary.kernel_plan import KernelPlan
from mptcp_throttled.vocabulary.operator import Override


def ends(client: str, port: int = 40000, proxy_port: int = 8080) -> FourTuple:
    proxy = "fd00:3::2" if ":" in client else "10.3.0.2"
    return FourTuple(Endpoint(ip_address(client), port), Endpoint(ip_address(proxy), proxy_port))


def ends_of(version: int = 4, port: int = 40000) -> FourTuple:
    """Those of the first client, with this IP version."""
    return ends("10.1.0.2" if version == 4 else "fd00:1::2", port)


def subflow(client: str, port: int = 40000, *, backup: bool = False, at: float = 0.0) -> Subflow:
    return Subflow(ends(client, port), 0, backup, backup, at)


def connection(number: int, *subflows: Subflow) -> Connection:
    return Connection(Token(number), 1, subflows[0].ends.proxy.port if subflows else 8080, subflows)


def client(number: int) -> Connection:
    """Client `number`, over Ethernet, which is capped, and Wi-Fi."""
    last = f"{number // 250}.{number % 250}"
    return connection(number, subflow(f"10.1.{last}"), subflow(f"10.2.{last}"))


def capped(number: int) -> FourTuple:
    """The subflow of that client over Ethernet."""
    return client(number).subflows[0].ends


def cap(network: str, rate: Rate | None, end: float | None = None) -> Override:
    """A cap of the downlink that is set by hand until `end`."""
    return Override(network, RateKind.CAP, rate, end)


def network(
    name: str, third: int, preference: int, cap: str | None = None, limit: str | None = None, per: Per = Per.CLIENT
) -> AccessNetwork:
    """A network with the subnets 10.`third`.0.0/16 and fd00:`third`::/32."""
    return AccessNetwork(
        name,
        (ip_network(f"10.{third}.0.0/16"), ip_network(f"fd00:{third}::/32")),
        preference,
        {kind: Rate.parse(text) for kind, text in ((RateKind.CAP, cap), (RateKind.LIMIT, limit)) if text is not None},
        per,
    )


def kernel_plan(
    classes: Mapping[int, Rate], assignments: Mapping[FourTuple, int] = Map(), paces: Mapping[FourTuple, int] = Map()
) -> KernelPlan:
    """A plan with HTB that does not shape unmarked traffic."""
    return KernelPlan(True, 0, Map(classes), Map(assignments), Map(paces))


ETHERNET = network("ethernet", 1, 2, cap="1mbit")
WIFI = network("wifi", 2, 1)


def examined_host() -> Host:
    """With the configuration that we install, and no service that answers."""
    file = Path(__file__).parents[2] / "config/mptcp-throttle.yaml"
    return Host(file, load_config(file), sniffer="no answer", daemon="no answer")
