"""From a scenario to the ip(8) and tc(8) commands that make it, and those of its events. Nothing here runs anything.

Link number n (from 1, in the order of the file) is 10.n.0.0/24 and fd00:n::/64; its end number k is host k there.
`@host` stands for the network namespace of a host. A link with more than two ends gets a switch: a host of its own,
with the link's name, which holds a bridge.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from mptcp_lab.scenario.schema import Protocol
from mptcp_lab.topology import kernel_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_lab.scenario.schema import EventSection, FlowSection, LinkSection, Port, Scenario
    from mptcp_throttle.units import Rate

Tool = Literal["ip", "ip -4", "ip -6", "tc"]

_BRIDGE: Final = "switch"
# Debian's netem(8) default of 1000 packets is the length of the whole queue, packets under way included.
_LEAST_PACKETS: Final = 10
_PACKET_BYTES: Final = 1514
# tbf sends whole packets only as far as its bucket goes: 16 kB hold any packet the stack makes here, at high rates
# the bucket holds what arrives between two looks at the clock.
_LEAST_BURST: Final = 16_384
_BURST_SECONDS: Final = 0.001
_FIRST_PORT: Final = 5201
_MAIN_METRIC: Final = 100


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
    """What builds a scenario: network namespaces, kernel parameters of each, and commands in this order."""

    hosts: tuple[str, ...]
    parameters: dict[str, dict[str, str]] = field(default_factory=dict)
    commands: tuple[Command, ...] = ()

    def __str__(self) -> str:
        lines = [f"{host}: namespace" for host in self.hosts]
        for host, parameters in self.parameters.items():
            lines += [f"{host}: {path} = {value}" for path, value in parameters.items()]
        return "\n".join([*lines, *map(str, self.commands)]) + "\n"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Which addresses and ports a scenario has."""

    scenario: Scenario

    def subnet(self, link: str, family: int) -> str:
        """Of a link: `10.1.0.0/24` or `fd00:1::/64`."""
        number = list(self.scenario.links).index(link) + 1
        return f"10.{number}.0.0/24" if family == 4 else f"fd00:{number}::/64"

    def of(self, port: Port, family: int) -> str:
        """Of an end of a link."""
        name = self.scenario.link_of(port)
        link = list(self.scenario.links).index(name) + 1
        end = self.scenario.links[name].ends.index(port) + 1
        return f"10.{link}.0.{end}" if family == 4 else f"fd00:{link}::{end}"

    def first(self, host: str, family: int, over: str | None = None) -> str:
        """Of a host on the link `over`, if it is there, else on the first of its links that has the family."""
        ports = [port for port, link in self.scenario.ports(host) if family in self.scenario.links[link].families]
        port = next((p for p in ports if over is not None and self.scenario.link_of(p) == over), ports[0])
        return self.of(port, family)

    def on(self, host: str, family: int, link: str) -> str | None:
        """Of a host on that link; None if it is not there."""
        return next((self.of(port, family) for port, name in self.scenario.ports(host) if name == link), None)

    def links(self) -> dict[str, str]:
        """The link of every address there is."""
        return {
            self.of(port, family): name
            for name, link in self.scenario.links.items()
            for port in link.ends
            for family in (4, 6)
        }

    def server_port(self, flow: str) -> int:
        """Where the receiver of a direct flow listens."""
        return _FIRST_PORT + list(self.scenario.flows).index(flow)


def make_plan(scenario: Scenario) -> Plan:
    """All that is to be done before anything runs."""
    switches = [name for name, link in scenario.links.items() if link.switched]
    parameters = {
        name: kernel_parameters(forwarding=host.forward)
        | {key.replace(".", "/"): value for key, value in host.sysctls.items()}
        for name, host in scenario.hosts.items()
    }
    return Plan((*scenario.hosts, *map(switch_of, switches)), parameters, tuple(_commands(scenario)))


def switch_of(link: str) -> str:
    """The host that is the switch of a link."""
    return f"{link}-{_BRIDGE}"


def _commands(scenario: Scenario) -> Iterator[Command]:
    for name, link in scenario.links.items():
        yield from _create(name, link)
    for host in scenario.hosts:
        yield from _configure(scenario, host)
    for name, link in scenario.links.items():
        yield from _shape(name, link)


def _create(name: str, link: LinkSection) -> Iterator[Command]:
    if not link.switched:
        a, b = link.ends
        yield Command(a.host, "ip", f"link add {a.interface} type veth peer name {b.interface} netns @{b.host}")
        return
    switch = switch_of(name)
    # Snooping would hold back IPv6 neighbour discovery until the bridge has learned who listens.
    yield Command(switch, "ip", f"link add {_BRIDGE} mtu {link.mtu} type bridge stp_state 0 mcast_snooping 0")
    yield Command(switch, "ip", f"link set {_BRIDGE} up")
    for port in link.ends:
        inner = _switch_port(port)
        yield Command(switch, "ip", f"link add {inner} type veth peer name {port.interface} netns @{port.host}")
        yield Command(switch, "ip", f"link set {inner} mtu {link.mtu} master {_BRIDGE} up")


def _switch_port(port: Port) -> str:
    return f"{port.host}-{port.interface}"


def _configure(scenario: Scenario, host: str) -> Iterator[Command]:
    section = scenario.hosts[host]
    yield Command(host, "ip", "link set lo up")
    for port, name in scenario.ports(host):
        link = scenario.links[name]
        # netem delays what it is given: packets of the size of the link, instead of the 64 kB that TCP would hand on.
        segments = " gso_max_segs 1" if scenario.emulated else ""
        yield Command(host, "ip", f"link set {port.interface} mtu {link.mtu}{segments} up")
    limits = section.limits
    line = f"mptcp limits set subflow {limits.subflows} add_addr_accepted {limits.add_addr_accepted}"
    yield Command(host, "ip", line)
    lines = [
        line for port, _ in scenario.ports(host) for line in (*_addresses(scenario, port), *_routes(scenario, port))
    ]
    # Starting ip(8) takes 0.1 s in the guest: once per address family.
    yield from sorted(lines, key=lambda command: command.tool)
    for port, _ in scenario.ports(host):
        yield from _endpoints(scenario, port)


def _addresses(scenario: Scenario, port: Port) -> Iterator[Command]:
    name = scenario.link_of(port)
    for family in scenario.links[name].families:
        length, nodad = ("24", "") if family == 4 else ("64", " nodad")
        address = Addresses(scenario).of(port, family)
        yield Command(port.host, _ip(family), f"address replace {address}/{length} dev {port.interface}{nodad}")


def _routes(scenario: Scenario, port: Port) -> Iterator[Command]:
    """Through the host that forwards, if one is at this link: what comes from the address leaves by its interface."""
    if scenario.hosts[port.host].forward:
        return
    name = scenario.link_of(port)
    addresses = Addresses(scenario)
    gateway = next((end for end in scenario.links[name].ends if scenario.hosts[end.host].forward), None)
    if gateway is None:
        return
    table = _number_of(scenario, port)
    for family in scenario.links[name].families:
        own, via = addresses.of(port, family), addresses.of(gateway, family)
        device = f"dev {port.interface}"
        lines = [
            f"route replace default via {via} {device} metric {table * _MAIN_METRIC}",
            f"route replace {addresses.subnet(name, family)} {device} src {own} table {table}",
            f"route replace default via {via} {device} src {own} table {table}",
        ]
        yield from (Command(port.host, _ip(family), line) for line in lines)
        yield Command(port.host, _ip(family), f"rule add from {own} lookup {table}")


def _number_of(scenario: Scenario, port: Port) -> int:
    return [own for own, _ in scenario.ports(port.host)].index(port) + 1


def _endpoints(scenario: Scenario, port: Port) -> Iterator[Command]:
    flags = scenario.hosts[port.host].endpoints.get(port.interface)
    if flags is None:
        return
    for family in scenario.links[scenario.link_of(port)].families:
        address = Addresses(scenario).of(port, family)
        identity = _endpoint_id(scenario, port, family)
        line = f"mptcp endpoint add {address} id {identity} dev {port.interface} {' '.join(flags)}"
        yield Command(port.host, "ip", line)


def _endpoint_id(scenario: Scenario, port: Port, family: int) -> int:
    # Address ids are per host, 1 to 255; 0 is the address a connection began with.
    return 10 * _number_of(scenario, port) + family


def _ip(family: int) -> Tool:
    return "ip -4" if family == 4 else "ip -6"


def _shape(name: str, link: LinkSection) -> Iterator[Command]:
    """The queueing disciplines of a link: where the packets leave for it."""
    words = _qdisc(link)
    if words is None:
        return
    for port in link.ends:
        host, device = (switch_of(name), _switch_port(port)) if link.switched else port
        yield Command(host, "tc", f"qdisc replace dev {device} root {words}")


def _qdisc(link: LinkSection) -> str | None:
    if link.emulated:
        return _netem(link)
    if link.rate is None:
        return None
    burst = max(_LEAST_BURST, round(link.rate.bytes_per_second * _BURST_SECONDS))
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
    if link.rate is None:
        return " ".join([*words, "limit 100000"])
    # Its limit counts the packets that are under way, too.
    held = _limit(link, link.rate) + round((link.delay + link.jitter) * link.rate.bytes_per_second)
    packets = max(_LEAST_PACKETS, -(-held // (_PACKET_BYTES - 1500 + link.mtu)))
    return " ".join([*words, f"rate {link.rate} limit {packets}"])


def reshape(scenario: Scenario, event: EventSection) -> Scenario:
    """The scenario after an event that changes a link."""
    if event.link is None:
        return scenario
    names = ("rate", "delay", "jitter", "loss", "queue")
    changes = {name: getattr(event, name) for name in names if getattr(event, name) is not None}
    return scenario.model_copy(
        update={"links": scenario.links | {event.link: scenario.links[event.link].model_copy(update=changes)}}
    )


def event_commands(scenario: Scenario, event: EventSection) -> tuple[Command, ...]:
    """What an event does to the network; `scenario` as the events before it have left it. Empty for `throttle`."""
    return tuple(_event_commands(scenario, event))


def _event_commands(scenario: Scenario, event: EventSection) -> Iterator[Command]:
    if event.down is not None:
        yield Command(event.down.host, "ip", f"link set {event.down.interface} down")
    elif event.up is not None:
        yield from _bring_up(scenario, event.up)
    elif event.leave is not None:
        yield from _leave(scenario, event.leave)
    elif event.join is not None:
        yield from _removed_endpoints(scenario, event.join)
        yield from _bring_up(scenario, event.join)
        yield from _endpoints(scenario, event.join)
    elif event.endpoint is not None:
        word = "backup" if event.backup else "nobackup"
        for family in scenario.links[scenario.link_of(event.endpoint)].families:
            address = Addresses(scenario).of(event.endpoint, family)
            yield Command(event.endpoint.host, "ip", f"mptcp endpoint change {address} {word}")
    elif event.link is not None:
        yield from _shape(event.link, reshape(scenario, event).links[event.link])


def _bring_up(scenario: Scenario, port: Port) -> Iterator[Command]:
    yield from _removed_rules(scenario, port)
    yield Command(port.host, "ip", f"link set {port.interface} up")
    # With the interface went the routes, and the addresses of IPv6.
    yield from _addresses(scenario, port)
    yield from _routes(scenario, port)


def _leave(scenario: Scenario, port: Port) -> Iterator[Command]:
    """As a network manager does: MPTCP tells the other end (REMOVE_ADDR) while it still can."""
    yield from _removed_endpoints(scenario, port)
    for family in scenario.links[scenario.link_of(port)].families:
        # Id 0: of the connections that began with this address.
        address = Addresses(scenario).of(port, family)
        yield Command(port.host, "ip", f"mptcp endpoint delete id 0 {address}", optional=True)
    yield from _removed_rules(scenario, port)
    yield Command(port.host, "ip", f"address flush dev {port.interface}")
    yield Command(port.host, "ip", f"link set {port.interface} down")


def _removed_rules(scenario: Scenario, port: Port) -> Iterator[Command]:
    for family in scenario.links[scenario.link_of(port)].families:
        line = f"rule del from {Addresses(scenario).of(port, family)}"
        yield Command(port.host, _ip(family), line, optional=True)


def _removed_endpoints(scenario: Scenario, port: Port) -> Iterator[Command]:
    if port.interface in scenario.hosts[port.host].endpoints:
        for family in scenario.links[scenario.link_of(port)].families:
            identity = _endpoint_id(scenario, port, family)
            yield Command(port.host, "ip", f"mptcp endpoint delete id {identity}", optional=True)


def iperf_arguments(scenario: Scenario, name: str, seconds: float) -> list[str]:
    """The command line of the sender of a direct flow."""
    flow = scenario.flows[name]
    addresses = Addresses(scenario)
    target = addresses.first(flow.receiver, flow.family, flow.over)
    command = ["iperf3", "--client", target, "--port", str(addresses.server_port(name))]
    if flow.over is not None and (source := addresses.on(flow.sender, flow.family, flow.over)) is not None:
        command += ["--bind", source]
    if flow.protocol is Protocol.UDP:
        command += ["--udp", "--bitrate", str(flow.rate.bits_per_second if flow.rate else 0)]
    return [*_preload(flow), *command, "--time", f"{max(round(seconds), 1)}", "--json"]


def curl_arguments(scenario: Scenario, name: str, url: str, proxy_port: int) -> list[str]:
    """The command line of the receiver of a flow through Squid."""
    flow = scenario.flows[name]
    addresses = Addresses(scenario)
    proxy = _in_url(addresses.first(flow.via or "", flow.family))
    command = ["curl", "--silent", "--show-error", "--fail", "--write-out", "%{json}", "--output", "/dev/null"]
    if flow.over is not None and (source := addresses.on(flow.receiver, flow.family, flow.over)) is not None:
        command += ["--interface", source]
    return [*_preload(flow), *command, "--proxy", f"http://{proxy}:{proxy_port}", url]


def origin_url(scenario: Scenario, name: str, document: str) -> str:
    """Where the document of a flow through Squid is."""
    flow = scenario.flows[name]
    return f"http://{_in_url(Addresses(scenario).first(flow.sender, flow.family))}/{document}"


def _preload(flow: FlowSection) -> list[str]:
    return ["mptcpize", "run"] if flow.protocol in {Protocol.MPTCP, Protocol.FALLBACK} else []


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
