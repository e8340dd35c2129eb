"""Routes connections of clients to a transparent proxy: the router sends them there, and TPROXY to its socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mptcp_lab.proxy_server import PORT
from mptcp_lab.scenario.plan import Addresses, Command, ip
from mptcp_lab.scenario.world import execute

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mptcp_lab.host import Host
    from mptcp_lab.port import Port
    from mptcp_lab.scenario.scenario_schema import Network

# Those of the plan have lower numbers, and less urgent rules.
_TABLE: Final = 77
_PRIORITY: Final = 50
_MARK: Final = 1

_RULES: Final = """\
table inet transparent {{
    chain prerouting {{
        type filter hook prerouting priority mangle
        tcp dport {port} meta mark set {mark} tproxy to :{listener} accept
    }}
}}
"""


def intercept(hosts: Mapping[str, Host], network: Network, proxy: str, origin: str, listener: int = PORT) -> None:
    """Route what clients send to PORT of the host `origin` to the port `listener` of the host `proxy`.

    The proxy is at a link with the host that forwards. Raises LabError.
    """
    execute(hosts, _commands(network, proxy, origin))
    hosts[proxy].run("nft", _RULES.format(port=PORT, mark=_MARK, listener=listener))


def _commands(network: Network, proxy: str, origin: str) -> Iterator[Command]:
    own, gateway = _link(network, proxy)
    addresses = Addresses(network)
    for family in network.families(own):
        everything = "0.0.0.0/0" if family == 4 else "::/0"
        to_origin = f"to {addresses.first(origin, family)} ipproto tcp dport {PORT}"
        for host, line in (
            # What the proxy itself sends there is not led back to it.
            (gateway.host, f"rule add iif {gateway.interface} {to_origin} lookup main priority {_PRIORITY}"),
            (gateway.host, f"rule add {to_origin} lookup {_TABLE} priority {_PRIORITY + 1}"),
            (gateway.host, f"route add default via {addresses.of(own, family)} table {_TABLE}"),
            (proxy, f"rule add fwmark {_MARK} lookup {_TABLE} priority {_PRIORITY}"),
            (proxy, f"route add local {everything} dev lo table {_TABLE}"),
        ):
            yield Command(host, ip(family), line)


def _link(network: Network, proxy: str) -> tuple[Port, Port]:
    """The proxy's interface, and that of the host that forwards on the same link."""
    for port, link in network.ports(proxy):
        gateway = network.gateway(link)
        if gateway is not None:
            return port, gateway
    raise ValueError(f"{proxy} is at no link with a host that forwards")
