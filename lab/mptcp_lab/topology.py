"""The hosts of the lab and the links between them.

    ue eth0  --- 10 Mb/s ---\\
                             router --- proxy eth0
    ue wlan0 --- 56 Mb/s ---/      \\--- origin eth0

Each client has an access link of its own in each access network; a bridge in the router makes the clients of an
access network neighbours in its subnets, as a switch or an access point does. Everything is dual stack; host number
n of the subnet is the router for n = 1, else the only host (2) or client number n - 1.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from mptcp_lab import namespaces
from mptcp_lab.host import Host
from mptcp_lab.interrupts import postponed
from mptcp_lab.process import run
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

Family = Literal[4, 6]
Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class AccessLink:
    """A client's link to the access network `network`, the same `rate` in both directions.

    `routing_table` and `metric` are those of the client's routes through it; a lower metric is preferred.
    """

    network: str
    interface: str
    v4: IPv4Network
    v6: IPv6Network
    rate: Rate
    routing_table: int
    metric: int

    def subnet(self, family: Family) -> Network:
        """The subnet of that address family."""
        return self.v4 if family == 4 else self.v6


ETHERNET: Final = AccessLink(
    "ethernet", "eth0", IPv4Network("10.1.0.0/24"), IPv6Network("fd00:1::/64"), Rate(10_000_000), 1, 100
)
WIFI: Final = AccessLink(
    "wifi", "wlan0", IPv4Network("10.2.0.0/24"), IPv6Network("fd00:2::/64"), Rate(56_000_000), 2, 600
)
_PROXY_SUBNETS: Final[dict[Family, Network]] = {4: IPv4Network("10.3.0.0/24"), 6: IPv6Network("fd00:3::/64")}
_ORIGIN_SUBNETS: Final[dict[Family, Network]] = {4: IPv4Network("10.4.0.0/24"), 6: IPv6Network("fd00:4::/64")}
_ROUTER: Final = 1
_HOST: Final = 2

_RECOMMENDED: Final = Path(__file__).parents[2] / "systemd" / "sysctl.d" / "mptcp-throttle.conf"
_RECOMMENDED_BEFORE_6_9: Final = _RECOMMENDED.with_name("mptcp-throttle-before-6.9.conf")

# Deep enough for TCP to fill the link, shallow enough to keep the paths' delays alike: 62 kB at 10 Mb/s.
_QUEUE: Final = "burst 16kb latency 50ms"


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
    """What to build. `proxy_qdisc` is the proxy's own queueing discipline, in the words of tc(8).

    `in_order`: what arrives at a host is received by one processor, in the order in which it was sent.
    """

    clients: tuple[ClientSpec, ...] = (ClientSpec(),)
    ethernet: AccessLink = ETHERNET
    wifi: AccessLink = WIFI
    proxy_qdisc: str = "pfifo limit 1000"
    in_order: bool = True


class Client(Host):
    """A terminal with two access links; host number `number` of both access networks."""

    def __init__(self, spec: ClientSpec, number: int, namespace: str, directory: Path) -> None:
        super().__init__(spec.name, namespace, directory)
        self.spec = spec
        self._number = number

    def address(self, link: AccessLink, family: Family) -> Address:
        """The client's address in that access network."""
        return link.subnet(family)[self._number]

    def join(self, link: AccessLink, endpoint: Literal["active", "backup"] | None = None) -> None:
        """Bring a link up as a network manager does: addresses, routes, and the MPTCP endpoints if wanted."""
        interface, table = link.interface, link.routing_table
        self.ip([f"link set {interface} up"])
        for family in self.spec.families:
            subnet, address = link.subnet(family), self.address(link, family)
            lines = [
                f"address add {address}/{subnet.prefixlen} dev {interface}{' nodad' if family == 6 else ''}",
                f"route add default via {subnet[_ROUTER]} dev {interface} metric {link.metric}",
                f"route add {subnet} dev {interface} src {address} table {table}",
                f"route add default via {subnet[_ROUTER]} dev {interface} src {address} table {table}",
                f"rule add from {address} lookup {table}",
            ]
            if endpoint is not None:
                flags = "subflow backup" if endpoint == "backup" else "subflow"
                lines.append(f"mptcp endpoint add {address} id {_endpoint_id(link, family)} dev {interface} {flags}")
            self.ip(lines, family)

    def leave(self, link: AccessLink) -> None:
        """Take a link down as a network manager does: MPTCP tells the other end (REMOVE_ADDR) while it still can."""
        known = self.run("ip", "mptcp", "endpoint", "show").stdout
        for family in self.spec.families:
            address = self.address(link, family)
            removals = [f"rule del from {address} lookup {link.routing_table}"]
            if f"{address} " in known:
                removals.insert(0, f"mptcp endpoint delete id {_endpoint_id(link, family)}")
            self.ip(removals, family)
        self.ip([f"address flush dev {link.interface}", f"link set {link.interface} down"])


@dataclass(frozen=True, slots=True)
class Lab:
    """A running lab. `directory` holds everything its programs write; it goes when the lab goes."""

    topology: Topology
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
        return _PROXY_SUBNETS[family][_HOST]

    def origin_address(self, family: Family) -> Address:
        """Where the proxy reaches the origin server."""
        return _ORIGIN_SUBNETS[family][_HOST]


@contextmanager
def build(topology: Topology) -> Iterator[Lab]:
    """Build the hosts; at the end of the block, end what runs in them and remove them, whatever happened.

    Raises LabError if this machine cannot have them.
    """
    with namespaces.owned() as prefix:
        lab = _add_hosts(topology, prefix)
        try:
            _connect_hosts(lab)
            yield lab
        finally:
            with postponed():
                for host in (*lab.clients.values(), lab.proxy, lab.origin, lab.router):
                    host.stop()


def _add_hosts(topology: Topology, prefix: str) -> Lab:
    directory = namespaces.make_directory(prefix)

    def place(name: str) -> tuple[str, Path]:
        run(["ip", "netns", "add", prefix + name])
        return prefix + name, directory / name

    return Lab(
        topology,
        directory,
        router=Host("router", *place("router")),
        proxy=Host("proxy", *place("proxy")),
        origin=Host("origin", *place("origin")),
        clients={
            spec.name: Client(spec, number, *place(spec.name))
            for number, spec in enumerate(topology.clients, start=_HOST)
        },
    )


def _connect_hosts(lab: Lab) -> None:
    for host in (lab.router, lab.proxy, lab.origin, *lab.clients.values()):
        host.sysctl(kernel_parameters(forwarding=host is lab.router))
        host.ip(["link set lo up"])
    # Before Squid listens: what it accepts has the listening socket's buffer.
    lab.proxy.sysctl(recommended_kernel_parameters())
    _build_servers(lab)
    for link in (lab.topology.ethernet, lab.topology.wifi):
        _build_access_network(lab, link)
    for host in (lab.proxy, *lab.clients.values()):
        host.ip(["mptcp limits set subflow 4 add_addr_accepted 4"])
    if lab.topology.in_order:
        for number, host in enumerate((lab.router, lab.proxy, lab.origin, *lab.clients.values())):
            _receive_in_order(host, number % min(os.cpu_count() or 1, 32))


def _receive_in_order(host: Host, processor: int) -> None:
    """Let one processor take what arrives at a host.

    A wire keeps the order of packets. A veth does not: each waits for the processor that sent it, and where the sender
    moves from one to another (a qdisc that begins to hold packets back sends them from its timer) the later overtake
    the earlier. TCP takes that for loss.
    """
    mask = f"{1 << processor:x}"
    host.run("sh", "-c", f"for queue in /sys/class/net/*/queues/rx-0/rps_cpus; do echo {mask} > $queue; done")


def kernel_parameters(*, forwarding: bool) -> dict[str, str]:
    """What every host of a lab sets, by path below /proc/sys."""
    return {
        # What a new namespace inherits from the machine must not change what the lab measures.
        "net/ipv4/conf/all/rp_filter": "0",
        "net/ipv4/conf/default/rp_filter": "0",
        "net/ipv4/ip_forward": str(int(forwarding)),
        "net/ipv6/conf/all/forwarding": str(int(forwarding)),
        "net/ipv6/conf/default/accept_dad": "0",
        "net/ipv6/conf/default/accept_ra": "0",
        "net/ipv4/tcp_no_metrics_save": "1",
        # MPTCP wants 2 * sum of bandwidths * largest round-trip time to receive into. A path capped to 1 Mb/s has a
        # round-trip time of 0.5 s: 7 MB beside 56 Mb/s, more than Debian's 6 MiB.
        "net/ipv4/tcp_rmem": "4096 131072 33554432",
        "net/ipv4/tcp_wmem": "4096 16384 4194304",
    }


def recommended_kernel_parameters() -> dict[str, str]:
    """What we recommend for a proxy's host, by path below /proc/sys."""
    return _parameters(_RECOMMENDED)


def recommended_for_old_kernels() -> dict[str, str]:
    """What we recommend beside it before Linux 6.9: parameters of the whole machine, not of a network namespace."""
    return _parameters(_RECOMMENDED_BEFORE_6_9)


def _parameters(file: Path) -> dict[str, str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    settings = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip().replace(".", "/"): value.strip() for name, _, value in settings}


def _build_servers(lab: Lab) -> None:
    for host, subnets in ((lab.proxy, _PROXY_SUBNETS), (lab.origin, _ORIGIN_SUBNETS)):
        lab.router.ip(
            [
                f"link add {host.name} type veth peer name eth0 netns {host.namespace}",
                f"link set {host.name} up",
                *(f"address add {subnet[_ROUTER]}/{subnet.prefixlen} dev {host.name}" for subnet in subnets.values()),
            ]
        )
        host.ip(["link set eth0 up"])
        for family, subnet in subnets.items():
            host.ip(
                [
                    f"address add {subnet[_HOST]}/{subnet.prefixlen} dev eth0",
                    f"route add default via {subnet[_ROUTER]} dev eth0",
                ],
                family,
            )
    lab.proxy.tc([f"qdisc add dev eth0 root {lab.topology.proxy_qdisc}"])


def _build_access_network(lab: Lab, link: AccessLink) -> None:
    bridge = link.network
    lab.router.ip(
        [
            # Snooping would hold back IPv6 neighbour discovery until the bridge has learned who listens.
            f"link add {bridge} type bridge stp_state 0 mcast_snooping 0",
            f"link set {bridge} up",
            f"address add {link.v4[_ROUTER]}/{link.v4.prefixlen} dev {bridge}",
            f"address add {link.v6[_ROUTER]}/{link.v6.prefixlen} dev {bridge} nodad",
        ]
    )
    for client in lab.clients.values():
        port = f"{client.name}-{link.interface}"
        lab.router.ip(
            [
                f"link add {port} type veth peer name {link.interface} netns {client.namespace}",
                f"link set {port} master {bridge} up",
            ]
        )
        lab.router.tc([f"qdisc add dev {port} root tbf rate {link.rate} {_QUEUE}"])
        client.tc([f"qdisc add dev {link.interface} root tbf rate {link.rate} {_QUEUE}"])
        client.join(link, client.spec.wifi if link is lab.topology.wifi else None)


def _endpoint_id(link: AccessLink, family: Family) -> int:
    # Address ids are per host, 1 to 255; 0 is the address a connection began with.
    return 10 * link.routing_table + family
