"""From a network to the ip(8) and tc(8) commands that build it, and those of its events. Nothing here runs anything.

Link number n (from 1, in the order of the file) is 10.n.0.0/24 and fd00:n::/64; its end number k is host k there.
`@host` stands for the network namespace of a host. A link with more than two ends gets a switch: a host of its own,
with the link's name, which holds a bridge. The bridge of a bridged link is in the host that forwards.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING, Final, Literal

from mptcp_lab.playback import SEGMENT_SECONDS
from mptcp_lab.proxy_server import PORT, Access
from mptcp_lab.scenario.scenario_schema import Protocol
from mptcp_lab.video import wifi_trace
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mptcp_lab.port import Port
    from mptcp_lab.proxy_server import ProxyServer
    from mptcp_lab.scenario.scenario_schema import EventSection, FlowSection, LinkSection, Network, Scenario

Tool = Literal["ip", "ip -4", "ip -6", "tc"]

_BRIDGE: Final = "switch"
# Debian's netem(8) default of 1000 packets is the length of the whole queue, packets under way included.
_LEAST_PACKETS: Final = 10
_PACKET_BYTES: Final = 1514
# A tbf bucket must hold the largest packet that the stack makes here (16 kB), and what arrives in a timer period.
_LEAST_BURST: Final = 16_384
_BURST_SECONDS: Final = 0.001
_DATAGRAM_BITS: Final = 1448 * 8  # of iperf3, where an Ethernet frame has 1514 bytes
_FIRST_PORT: Final = 5201
_MAIN_METRIC: Final = 100
_NEXT_ADDRESS: Final = 10
"""Between two addresses of an interface: more than a link has ends."""


@dataclass(frozen=True, slots=True)
class Command:
    """A line for `tool` in batch mode, in the namespace of `host`; `optional` ones may fail."""

    host: str
    tool: Tool
    line: str
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.host}: {'-' if self.optional else ''}{self.tool} {self.line}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What builds a network: network namespaces, kernel parameters of each, and commands in this order."""

    hosts: tuple[str, ...]
    parameters: dict[str, dict[str, str]] = field(default_factory=dict)
    commands: tuple[Command, ...] = ()
    in_order: bool = False

    def __str__(self) -> str:
        lines = [f"{host}: namespace" for host in self.hosts]
        for host, parameters in self.parameters.items():
            lines += [f"{host}: {path} = {value}" for path, value in parameters.items()]
        order = ["every host: one processor receives its packets"] if self.in_order else []
        return "\n".join([*lines, *map(str, self.commands), *order]) + "\n"


def subnet(number: int, family: int) -> IPv4Network | IPv6Network:
    """The subnet of link `number`."""
    return IPv4Network(f"10.{number}.0.0/24") if family == 4 else IPv6Network(f"fd00:{number}::/64")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Which addresses a network has."""

    network: Network

    def subnet(self, link: str, family: int) -> IPv4Network | IPv6Network:
        """The subnet of a link."""
        return subnet(list(self.network.links).index(link) + 1, family)

    def of(self, port: Port, family: int) -> str:
        """The address of an end of a link, the first if it has several."""
        return self.all_of(port, family)[0]

    def all_of(self, port: Port, family: int) -> list[str]:
        """All addresses of an end of a link."""
        name = self.network.link_of(port)
        subnet, end = self.subnet(name, family), self.network.links[name].ends.index(port) + 1
        count = self.network.hosts[port.host].addresses.get(port.interface, 1)
        return [str(subnet[end + _NEXT_ADDRESS * number]) for number in range(count)]

    def first(self, host: str, family: int, over: str | None = None) -> str:
        """The address of a host on the link `over`, if it is there, else on the first of its links with the family."""
        ports = [port for port, _ in self.network.ports(host) if family in self.network.families(port)]
        port = next((p for p in ports if over is not None and self.network.link_of(p) == over), ports[0])
        return self.of(port, family)

    def on(self, host: str, family: int, link: str) -> str | None:
        """The address of a host on that link; None if it is not there."""
        return next((self.of(port, family) for port, name in self.network.ports(host) if name == link), None)

    def links(self) -> dict[str, str]:
        """The link of every address."""
        return {
            address: name
            for name, link in self.network.links.items()
            for port in link.ends
            for family in (4, 6)
            for address in self.all_of(port, family)
        }


def server_port(scenario: Scenario, flow: str) -> int:
    """The port on which the receiver of a direct flow listens."""
    return _FIRST_PORT + list(scenario.flows).index(flow)


def make_plan(network: Network) -> Plan:
    """All that is to be done before any program runs."""
    bridges = [bridge_of(name) for name, link in network.links.items() if link.shared]
    parameters = {
        name: kernel_parameters(forwarding=host.forward)
        | {key.replace(".", "/"): value for key, value in host.sysctls.items()}
        for name, host in network.hosts.items()
    }
    return Plan((*network.hosts, *bridges), parameters, tuple(_commands(network)), network.in_order)


def kernel_parameters(*, forwarding: bool) -> dict[str, str]:
    """What every host sets, by path below /proc/sys."""
    return {
        # A new namespace inherits these from the machine, which must not change what the lab measures.
        "net/ipv4/conf/all/rp_filter": "0",
        "net/ipv4/conf/default/rp_filter": "0",
        "net/ipv4/ip_forward": str(int(forwarding)),
        "net/ipv6/conf/all/forwarding": str(int(forwarding)),
        "net/ipv6/conf/default/accept_dad": "0",
        "net/ipv6/conf/default/accept_ra": "0",
        "net/ipv4/tcp_no_metrics_save": "1",
        # MPTCP needs a receive buffer of 2 * sum of bandwidths * largest round-trip time. A path capped to 1 Mb/s has a
        # round-trip time of 0.5 s: 7 MB beside 56 Mb/s, more than Debian's 6 MiB.
        "net/ipv4/tcp_rmem": "4096 131072 33554432",
        "net/ipv4/tcp_wmem": "4096 16384 4194304",
    }


def bridge_of(link: str) -> str:
    """The host that is the bridge of a link with more than two ends."""
    return f"{link}-{_BRIDGE}"


def _commands(network: Network) -> Iterator[Command]:
    for name, link in network.links.items():
        yield from _create(network, name, link)
    for host in network.hosts:
        yield from _configure(network, host)
    for name, link in network.links.items():
        # Open vSwitch removes the root qdiscs of its ports.
        yield from (command for command in shape(network, name, link) if command.host not in network.switches)
    for host, section in network.hosts.items():
        for interface, words in section.qdiscs.items():
            yield Command(host, "tc", f"qdisc replace dev {interface} root {words}")


def _create(network: Network, name: str, link: LinkSection) -> Iterator[Command]:
    if not (link.shared or link.bridged):
        a, b = link.ends
        yield Command(a.host, "ip", f"link add {a.interface} type veth peer name {b.interface} netns @{b.host}")
        return
    gateway = network.gateway(name) if link.bridged else None
    host, bridge = gateway or (bridge_of(name), _BRIDGE)
    # Snooping would hold back IPv6 neighbour discovery until the bridge has learned who listens.
    yield Command(host, "ip", f"link add {bridge} mtu {link.mtu} type bridge stp_state 0 mcast_snooping 0")
    yield Command(host, "ip", f"link set {bridge} up")
    for port in link.ends:
        if port != gateway:
            inner = _bridge_port(port)
            yield Command(host, "ip", f"link add {inner} type veth peer name {port.interface} netns @{port.host}")
            yield Command(host, "ip", f"link set {inner} mtu {link.mtu} master {bridge} up")


def _bridge_port(port: Port) -> str:
    """The interface at the bridge that leads to a port."""
    return f"{port.host}-{port.interface}"


def _configure(network: Network, host: str) -> Iterator[Command]:
    yield Command(host, "ip", "link set lo up")
    for port, name in network.ports(host):
        link = network.links[name]
        # Packets of the size of the link, instead of the 64 kB that TCP would hand on.
        segments = " gso_max_segs 1" if network.sends_single_packets else ""
        yield Command(host, "ip", f"link set {port.interface} mtu {link.mtu}{segments} up")
    limits = network.hosts[host].limits
    line = f"mptcp limits set subflow {limits.subflows} add_addr_accepted {limits.add_addr_accepted}"
    yield Command(host, "ip", line)
    lines = [line for port, _ in network.ports(host) for line in (*_addresses(network, port), *_routes(network, port))]
    # Starting ip(8) takes 0.1 s in the guest: once per address family.
    yield from sorted(lines, key=lambda command: command.tool)
    for port, _ in network.ports(host):
        yield from _endpoints(network, port)


def _addresses(network: Network, port: Port) -> Iterator[Command]:
    for family in network.families(port):
        length, nodad = ("24", "") if family == 4 else ("64", " nodad")
        for address in Addresses(network).all_of(port, family):
            yield Command(port.host, ip(family), f"address replace {address}/{length} dev {port.interface}{nodad}")


def _routes(network: Network, port: Port) -> Iterator[Command]:
    """Through the host that forwards, if one is at this link: what comes from the address leaves by its interface."""
    name = network.link_of(port)
    addresses, gateway = Addresses(network), network.gateway(name)
    if gateway is None or gateway.host == port.host:
        return
    table = _number_of(network, port)
    for family in network.families(port):
        own, via = addresses.of(port, family), addresses.of(gateway, family)
        device = f"dev {port.interface}"
        lines = [
            f"route replace default via {via} {device} metric {table * _MAIN_METRIC}",
            f"route replace {addresses.subnet(name, family)} {device} src {own} table {table}",
            f"route replace default via {via} {device} src {own} table {table}",
        ]
        lines += [f"rule add from {address} lookup {table}" for address in addresses.all_of(port, family)]
        yield from (Command(port.host, ip(family), line) for line in lines)


def _number_of(network: Network, port: Port) -> int:
    return [own for own, _ in network.ports(port.host)].index(port) + 1


def _endpoints(network: Network, port: Port) -> Iterator[Command]:
    flags = network.hosts[port.host].endpoints.get(port.interface)
    if flags is None:
        return
    for family in network.families(port):
        # The last one: a connection over an interface with two addresses begins with the first.
        address = Addresses(network).all_of(port, family)[-1]
        identity = _endpoint_id(network, port, family)
        line = f"mptcp endpoint add {address} id {identity} dev {port.interface} {' '.join(flags)}"
        yield Command(port.host, "ip", line)


def _endpoint_id(network: Network, port: Port, family: int) -> int:
    # Address ids are per host, 1 to 255; 0 is the address a connection began with.
    return 10 * _number_of(network, port) + family


def ip(family: int) -> Tool:
    """The tool for an IP version."""
    return "ip -4" if family == 4 else "ip -6"


def shape(network: Network, name: str, link: LinkSection) -> Iterator[Command]:
    """The qdiscs of a link, at the interfaces where packets leave for it."""
    gateway = network.gateway(name) if link.bridged else None
    for port in link.ends:
        words = _qdisc(link.at(port))
        if words is None:
            continue
        if link.shared:
            yield Command(bridge_of(name), "tc", f"qdisc replace dev {_bridge_port(port)} root {words}")
            # What an end sends to several others shares its rate. The delay is added where packets arrive.
            own = _qdisc(link.at_once)
            if own is not None:
                yield Command(port.host, "tc", f"qdisc replace dev {port.interface} root {own}")
        elif port != gateway:
            if gateway is not None:
                yield Command(gateway.host, "tc", f"qdisc replace dev {_bridge_port(port)} root {words}")
            yield Command(port.host, "tc", f"qdisc replace dev {port.interface} root {words}")


def _qdisc(link: LinkSection) -> str | None:
    if link.emulated:
        return _netem(link)
    if link.rate is None:
        return None
    burst = link.burst or max(_LEAST_BURST, round(link.rate.bytes_per_second * _BURST_SECONDS))
    return f"tbf rate {link.rate} burst {burst} limit {_limit(link, link.rate) + burst}"


def _limit(link: LinkSection, rate: Rate) -> int:
    return max(link.queue.bytes_at(rate), 2 * link.mtu)


def _netem(link: LinkSection) -> str:
    words = ["netem"]
    if link.delay:
        words.append(f"delay {link.delay * 1000:g}ms")
        if link.jitter:
            words.append(f"{link.jitter * 1000:g}ms")
    if link.loss:
        words.append(f"loss {link.loss:g}%")
    if link.reorder:
        words.append(f"reorder {link.reorder:g}% gap {link.gap}")
    if link.rate is None:
        return " ".join([*words, "limit 100000"])
    # Its limit counts the packets that are under way, too.
    queued = _limit(link, link.rate) + round((link.delay + link.jitter) * link.rate.bytes_per_second)
    packets = max(_LEAST_PACKETS, -(-queued // (_PACKET_BYTES - 1500 + link.mtu)))
    return " ".join([*words, f"rate {link.rate} limit {packets}"])


def traced(scenario: Scenario, number: int) -> Scenario:
    """The scenario in run `number`: the traces of its links, and their first rates."""

    def of_run(link: LinkSection) -> LinkSection:
        if link.trace is None:
            return link
        trace = link.trace + number - 1
        return link.model_copy(update={"trace": trace, "rate": Rate(wifi_trace(trace, 0.1)[0].rate)})

    return scenario.model_copy(update={"links": {name: of_run(link) for name, link in scenario.links.items()}})


def reshape(scenario: Scenario, event: EventSection) -> Scenario:
    """The scenario after an event that changes a link."""
    if event.link is None:
        return scenario
    names = ("rate", "delay", "jitter", "loss", "queue")
    changes = {name: getattr(event, name) for name in names if getattr(event, name) is not None}
    return scenario.model_copy(
        update={"links": scenario.links | {event.link: scenario.links[event.link].model_copy(update=changes)}}
    )


def event_commands(scenario: Scenario, event: EventSection) -> Iterator[Command]:
    """What an event does to the network; `scenario` as the events before it have left it. None for `throttle`."""
    if event.down is not None:
        yield Command(event.down.host, "ip", f"link set {event.down.interface} down")
    elif event.up is not None:
        yield from _bring_up(scenario, event.up)
    elif event.leave is not None:
        yield from leave_commands(scenario, event.leave)
    elif event.join is not None:
        yield from _removed_endpoints(scenario, event.join)
        yield from _bring_up(scenario, event.join)
        yield from _endpoints(scenario, event.join)
    elif event.endpoint is not None:
        word = "backup" if event.backup else "nobackup"
        for family in scenario.families(event.endpoint):
            address = Addresses(scenario).all_of(event.endpoint, family)[-1]
            yield Command(event.endpoint.host, "ip", f"mptcp endpoint change {address} {word}")
    elif event.link is not None:
        yield from shape(scenario, event.link, reshape(scenario, event).links[event.link])


def _bring_up(network: Network, port: Port) -> Iterator[Command]:
    yield from _removed_rules(network, port)
    yield Command(port.host, "ip", f"link set {port.interface} up")
    # With the interface went the routes, and the addresses of IPv6.
    yield from _addresses(network, port)
    yield from _routes(network, port)


def leave_commands(network: Network, port: Port) -> Iterator[Command]:
    """Take an interface down as a network manager does: first MPTCP tells the other end (REMOVE_ADDR)."""
    yield from _removed_endpoints(network, port)
    for family in network.families(port):
        # Id 0: of the connections that began with this address.
        address = Addresses(network).of(port, family)
        yield Command(port.host, "ip", f"mptcp endpoint delete id 0 {address}", optional=True)
    yield from _removed_rules(network, port)
    yield Command(port.host, "ip", f"address flush dev {port.interface}")
    yield Command(port.host, "ip", f"link set {port.interface} down")


def _removed_rules(network: Network, port: Port) -> Iterator[Command]:
    for family in network.families(port):
        for address in Addresses(network).all_of(port, family):
            yield Command(port.host, ip(family), f"rule del from {address}", optional=True)


def _removed_endpoints(network: Network, port: Port) -> Iterator[Command]:
    if port.interface in network.hosts[port.host].endpoints:
        for family in network.families(port):
            identity = _endpoint_id(network, port, family)
            yield Command(port.host, "ip", f"mptcp endpoint delete id {identity}", optional=True)


def iperf_arguments(scenario: Scenario, name: str, seconds: float) -> list[str]:
    """The command line of the sender of a direct flow without a size."""
    flow = scenario.flows[name]
    addresses = Addresses(scenario)
    target = addresses.first(flow.receiver, flow.family, flow.over)
    command = ["iperf3", "--client", target, "--port", str(server_port(scenario, name))]
    if flow.over is not None and (source := addresses.on(flow.sender, flow.family, flow.over)) is not None:
        command += ["--bind", source]
    if flow.protocol is Protocol.UDP:
        command += ["--udp", "--bitrate", str(flow.rate.bits_per_second if flow.rate else 0)]
        if flow.rate:
            command += ["--pacing-timer", str(_datagram_microseconds(flow.rate))]
    return [*_preload(flow), *command, "--time", f"{max(round(seconds), 1)}", "--json"]


def _datagram_microseconds(rate: Rate) -> int:
    """How often iperf3 looks whether a datagram is due: more often keeps an emulated processor busy."""
    return max(1000, round(_DATAGRAM_BITS / rate.bits_per_second * 1e6))  # 1000: its default


def send_arguments(scenario: Scenario, name: str) -> list[str]:
    """The arguments of `mptcp_lab.traffic` for the sender of a direct flow with a size."""
    flow, addresses = scenario.flows[name], Addresses(scenario)
    protocol = Protocol.TCP if flow.protocol is Protocol.TCP else Protocol.MPTCP
    target = addresses.first(flow.receiver, flow.family, flow.over)
    source = None if flow.over is None else addresses.on(flow.sender, flow.family, flow.over)
    arguments = ["send", str(server_port(scenario, name)), protocol.value, str(flow.size), target]
    return arguments if source is None else [*arguments, source]


def curl_arguments(
    scenario: Scenario, name: str, url: str, server: ProxyServer, file: str = "/dev/null"
) -> list[str | Path]:
    """The command line of the client of a flow through a server: it uploads the file, or writes what arrives to it."""
    flow = scenario.flows[name]
    addresses = Addresses(scenario)
    # Without the header, for whose answer curl would wait a second.
    what = ["--header", "Expect:", "--upload-file"] if scenario.is_upload(name) else ["--output"]
    options = ["--silent", "--show-error", "--fail", "--write-out", "%{json}", *what, file]
    source = None if flow.over is None else addresses.on(scenario.client_of(name), flow.family, flow.over)
    if source is not None and server.access is not Access.SOCKS:
        options += ["--interface", source]
    address = in_url(addresses.first(flow.via or "", flow.family))
    return server.curl(options, f"{address}:{server.port}", url, mptcp=flow.protocol is Protocol.MPTCP)


def player_arguments(scenario: Scenario, name: str, urls: Sequence[str]) -> list[str]:
    """The command line of the player of a video, with the URL of each bitrate."""
    flow, addresses = scenario.flows[name], Addresses(scenario)
    source = None if flow.over is None else addresses.on(flow.receiver, flow.family, flow.over)
    options = [] if source is None else ["--from", source]
    options += ["--tcp"] if flow.protocol is Protocol.TCP else []
    segments = math.ceil((flow.video or 0) / SEGMENT_SECONDS)
    proxy = [addresses.first(flow.via or "", flow.family), str(PORT)]
    return [sys.executable, "-m", "mptcp_lab.player", *proxy, *options, "--segments", str(segments), *urls]


def document_size(scenario: Scenario, name: str) -> int:
    """Bytes of the document of a flow through a server; without a size, more than links carry in the longest run."""
    flow = scenario.flows[name]
    rates = [scenario.links[link].rate for _, link in scenario.ports(flow.receiver)]
    return flow.size or round(sum(rate.bytes_per_second for rate in rates if rate) * scenario.duration)


def origin_url(scenario: Scenario, name: str, document: str) -> str:
    """Where the document of a flow through a server is, or will be."""
    flow = scenario.flows[name]
    origin = flow.receiver if scenario.is_upload(name) else flow.sender
    return f"http://{in_url(Addresses(scenario).first(origin, flow.family))}/{document}"


def _preload(flow: FlowSection) -> list[str]:
    return ["mptcpize", "run"] if flow.protocol in {Protocol.MPTCP, Protocol.FALLBACK} else []


def endpoint(network: Network, host: str, port: int) -> str:
    """ADDRESS:PORT of a host, IPv4 if it has that."""
    families = {family for end, _ in network.ports(host) for family in network.families(end)}
    return f"{in_url(Addresses(network).first(host, min(families)))}:{port}"


def in_url(address: object) -> str:
    """An address as it stands in a URL."""
    return f"[{address}]" if ":" in str(address) else str(address)
