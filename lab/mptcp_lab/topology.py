"""The network of the integration tests and benchmarks.

    ue eth0  --- 10 Mb/s ---\\
                             router --- proxy eth0
    ue wlan0 --- 56 Mb/s ---/      \\--- origin eth0

Each client has a link of its own to each of the two access networks, and to a third if there is one. All hosts are
dual stack unless the client says otherwise.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from mptcp_lab.host import Host
from mptcp_lab.port import Port
from mptcp_lab.scenario import plan, world
from mptcp_lab.scenario.scenario_schema import EndpointFlag, HostSection, Limits, LinkSection
from mptcp_lab.scenario.scenario_schema import Network as Description
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Family = Literal[4, 6]
Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class AccessLink:
    """A client's link to the access network `network`, the same `rate` in both directions.

    `number` is that of the network's link in the plan, which its subnets follow from.
    """

    network: str
    interface: str
    number: int
    rate: Rate

    @property
    def v4(self) -> Network:
        """The IPv4 subnet."""
        return plan.subnet(self.number, 4)

    @property
    def v6(self) -> Network:
        """The IPv6 subnet."""
        return plan.subnet(self.number, 6)


ETHERNET: Final = AccessLink("ethernet", "eth0", 1, Rate(10_000_000))
WIFI: Final = AccessLink("wifi", "wlan0", 2, Rate(56_000_000))
LTE: Final = AccessLink("lte", "wwan0", 5, Rate(8_000_000))
"""The third one. Links of the other hosts come before it."""

_RECOMMENDED: Final = Path(__file__).parents[2] / "systemd" / "sysctl.d" / "30-mptcp-throttle.conf"
_RECOMMENDED_BEFORE_6_9: Final = _RECOMMENDED.with_name("mptcp-throttle-before-6.9.conf")
_BURST: Final = 16_384
_LIMITS: Final = Limits(subflows=4, add_addr_accepted=4)


@dataclass(frozen=True, slots=True)
class ClientSpec:
    """A client: its name (the router's port names are derived from it), its address families, and its MPTCP.

    `wifi` says how its Wi-Fi addresses join a connection that began over Ethernet; None: not at all.
    """

    name: str = "ue"
    families: tuple[Family, ...] = (4, 6)
    wifi: Literal["active", "backup"] | None = "active"

    def __post_init__(self) -> None:
        # IFNAMSIZ is 16 with the terminating zero, and the router's port is called "<name>-wlan0".
        if not 0 < len(self.name) <= 9 or not self.families:
            raise ValueError(f"{self.name!r} is not a client; allowed: a name of 1 to 9 letters, one family or more")


@dataclass(frozen=True, slots=True)
class Topology:
    """What to build. `lte` is the third access network, if there is one.

    `proxy_qdisc` is the proxy's own queueing discipline, in the words of tc(8).

    `proxy_sysctls` are further kernel parameters of the proxy, by their path below /proc/sys.
    `in_order`: one processor receives the packets of a host, in the order in which they were sent.
    """

    clients: tuple[ClientSpec, ...] = (ClientSpec(),)
    ethernet: AccessLink = ETHERNET
    wifi: AccessLink = WIFI
    lte: AccessLink | None = None
    proxy_qdisc: str = "pfifo limit 1000"
    proxy_sysctls: Mapping[str, str] = field(default_factory=dict)
    in_order: bool = True

    def description(self) -> Description:
        """The topology as a description for the plan."""
        # Names here are longer than scenario files allow: not validated.
        hosts = {
            "router": HostSection(forward=True),
            # What Squid accepts has the buffers of the listening socket: parameters are set before it listens.
            "proxy": HostSection.model_construct(
                limits=_LIMITS,
                sysctls={**_parameters(_RECOMMENDED), **self.proxy_sysctls},
                qdiscs={"eth0": self.proxy_qdisc},
            ),
            "origin": HostSection(),
        }
        hosts |= {client.name: self._host(client) for client in self.clients}
        links = {link.network: self._access(link) for link in (self.ethernet, self.wifi)}
        links |= {
            name: LinkSection.model_construct(ends=(Port("router", name), Port(name, "eth0")))
            for name in ("proxy", "origin")
        }
        if self.lte is not None:
            links[self.lte.network] = self._access(self.lte)
        return Description.model_construct(hosts=hosts, links=links, in_order=self.in_order)

    def _access(self, link: AccessLink) -> LinkSection:
        return LinkSection.model_construct(
            ends=(Port("router", link.network), *(Port(client.name, link.interface) for client in self.clients)),
            rate=link.rate,
            # tbf splits packets that are larger than its bucket: at any rate they arrive as they do over a wire.
            burst=_BURST,
            bridged=True,
        )

    def _host(self, client: ClientSpec) -> HostSection:
        flags = [EndpointFlag.SUBFLOW, *([EndpointFlag.BACKUP] if client.wifi == "backup" else [])]
        endpoints = {} if client.wifi is None else {self.wifi.interface: tuple(flags)}
        if self.lte is not None:
            endpoints[self.lte.interface] = (EndpointFlag.SUBFLOW,)
        return HostSection.model_construct(families=client.families, limits=_LIMITS, endpoints=endpoints)


class Client(Host):
    """A terminal with two access links or three."""

    def __init__(self, spec: ClientSpec, description: Description, name: str, namespace: str, directory: Path) -> None:
        super().__init__(name, namespace, directory)
        self.spec = spec
        self._description = description

    @property
    def interfaces(self) -> tuple[str, ...]:
        """The client's ends of the access links."""
        return tuple(port.interface for port, _ in self._description.ports(self.name))

    def address(self, link: AccessLink, family: Family) -> Address:
        """The client's address in that access network."""
        return _address(self._description, Port(self.name, link.interface), family)

    def leave(self, link: AccessLink) -> None:
        """Take a link down as a network manager does: MPTCP tells the other end (REMOVE_ADDR) while it still can."""
        world.execute({self.name: self}, plan.leave_commands(self._description, Port(self.name, link.interface)))


@dataclass(frozen=True, slots=True)
class Lab:
    """A running lab. `directory` holds everything its programs write; it is removed with the lab."""

    topology: Topology
    description: Description
    directory: Path
    router: Host
    proxy: Host
    origin: Host
    clients: dict[str, Client]

    @property
    def client(self) -> Client:
        """The first client."""
        return next(iter(self.clients.values()))

    def proxy_address(self, family: Family) -> Address:
        """Where clients reach the proxy."""
        return _address(self.description, Port("proxy", "eth0"), family)

    def origin_address(self, family: Family) -> Address:
        """Where the proxy reaches the origin server."""
        return _address(self.description, Port("origin", "eth0"), family)


def _address(description: Description, port: Port, family: Family) -> Address:
    return ip_address(plan.Addresses(description).of(port, family))


@contextmanager
def build(topology: Topology) -> Iterator[Lab]:
    """Build the hosts; at the end of the block, end what runs in them and remove them, whatever happened.

    Raises LabError if this machine cannot have them.
    """
    description = topology.description()
    specs = {spec.name: spec for spec in topology.clients}
    clients: dict[str, Client] = {}

    def make_host(name: str, namespace: str, directory: Path) -> Host:
        if name not in specs:
            return Host(name, namespace, directory)
        clients[name] = Client(specs[name], description, name, namespace, directory)
        return clients[name]

    with world.build(plan.make_plan(description), make_host) as built:
        router, proxy, origin = (built.hosts[name] for name in ("router", "proxy", "origin"))
        yield Lab(topology, description, built.directory, router, proxy, origin, clients)


def recommended_for_old_kernels() -> dict[str, str]:
    """What we recommend for a proxy's whole machine before Linux 6.9, by path below /proc/sys."""
    return _parameters(_RECOMMENDED_BEFORE_6_9)


def _parameters(file: Path) -> dict[str, str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    settings = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip().replace(".", "/"): value.strip() for name, _, value in settings}
