"""What a scenario file may say. Every key is explained in docs/contribute/lab.md.

Times are in seconds, amounts of data in bytes, shares in percent, rates of figures in Mb/s.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import AfterValidator, Field, PlainValidator

from mptcp_lab.port import Port
from mptcp_lab.proxy_server import Access
from mptcp_lab.scenario.quantities import Amount, Moment, MomentText, Percent, Queue, QueueText, number
from mptcp_lab.servers import ServerKind
from mptcp_throttle.config.schema import BudgetSection, RatesSection
from mptcp_throttle.config.validation import (
    DurationText,
    Flag,
    Name,
    RateOrNull,
    Section,
    each_once,
    list_of,
    one_of,
    text_that,
    whole,
)
from mptcp_throttle.model import ClassifierKind, Per

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_lab.proxy_server import ProxyServer
    from mptcp_throttle.config.yaml_file import KeyPath

MAX_LINKS: Final = 50
MAX_ENDS: Final = 9
LATEST_KERNEL: Final = "debian-6.12"
"""The guest's kernel where this machine's does not do."""


class Kernel(StrEnum):
    """Where a scenario runs: on this machine's kernel, or on a stock one in the guest."""

    NATIVE = "native"
    DEBIAN_6_1 = "debian-6.1"
    DEBIAN_6_12 = LATEST_KERNEL


class Program(StrEnum):
    """What a host of the S0 topology runs, besides a server."""

    THROTTLE = "throttle"
    ORIGIN = "origin"


class Node(StrEnum):
    """What a host is: one that speaks TCP, or an Open vSwitch."""

    HOST = "host"
    OVS = "ovs"


class Recovery(StrEnum):
    """What the switches' controller does when a link fails: nothing, or lead flows around it."""

    NONE = "none"
    REROUTE = "reroute"


class Protocol(StrEnum):
    """How a flow is carried; `fallback`: by MPTCP to a server that speaks TCP only."""

    MPTCP = "mptcp"
    TCP = "tcp"
    FALLBACK = "fallback"
    UDP = "udp"


class EndpointFlag(StrEnum):
    """Flags of `ip mptcp endpoint add`."""

    SUBFLOW = "subflow"
    SIGNAL = "signal"
    BACKUP = "backup"
    FULLMESH = "fullmesh"


# IFNAMSIZ is 16 with the terminating zero; the ports of a switch are called "<host>-<interface>".
_PORT: Final = re.compile(r"([a-z][a-z0-9]{0,6})\.([a-z][a-z0-9]{0,6})")
_HOST: Final = re.compile(r"[a-z][a-z0-9]{0,6}")
_SYSCTL: Final = re.compile(r"net(\.[a-z0-9_]+){2,}")
_NUMBER: Final = re.compile(r"\d+(\.\d+)?")
_FIGURE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9.+_-]*/)?[a-z0-9][a-z0-9_-]*")


def _port(value: object) -> Port:
    match = _PORT.fullmatch(str(value))
    if match is None:
        raise ValueError("allowed: HOST.INTERFACE, each up to 7 of a-z and 0-9, a letter first")
    return Port(match[1], match[2])


def _sysctl_value(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).isprintable():
        raise ValueError("allowed: a number or a text")
    return str(value)


def _figure(value: object) -> float | str:
    text = str(value)
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _FIGURE.fullmatch(text):
        raise ValueError("allowed: a figure of this file, VARIANT/FIGURE, or a number")
    return text


Text = Annotated[str, text_that(bool, "text in one line")]
HostName = Annotated[str, text_that(_HOST.fullmatch, "up to 7 of a-z and 0-9, a letter first")]
PortText = Annotated[Port, PlainValidator(_port)]
Number = Annotated[float, number(0, 10**9)]
Links = Annotated[tuple[Name, ...], list_of("links", MAX_LINKS), AfterValidator(each_once)]


class Limits(Section):
    """`ip mptcp limits` of a host."""

    subflows: Annotated[int, whole(0, 8)] = 8
    add_addr_accepted: Annotated[int, whole(0, 8)] = 8


Families = Annotated[tuple[Annotated[int, whole(4, 6)], ...], list_of("address families", 2), AfterValidator(each_once)]


class HostSection(Section):
    """A host: its server, what else it runs, whether it forwards, its address families, MPTCP, sysctls and qdiscs.

    `addresses`: how many an interface has, if not one; then `endpoints` are for those after the first. `qdiscs` are the
    root qdiscs of interfaces in the words of tc(8), instead of those that make the link's rate.
    """

    node: Annotated[Node, one_of(Node)] = Node.HOST
    forward: Flag = False
    families: Families = (4, 6)
    addresses: dict[Name, Annotated[int, whole(1, 2)]] = Field(default_factory=dict)
    server: Annotated[ServerKind, one_of(ServerKind)] | None = None
    run: Annotated[
        tuple[Annotated[Program, one_of(Program)], ...], list_of("programs", len(Program)), AfterValidator(each_once)
    ] = ()
    sysctls: dict[
        Annotated[str, text_that(_SYSCTL.fullmatch, "a parameter below net, such as net.ipv4.tcp_dsack")],
        Annotated[str, PlainValidator(_sysctl_value)],
    ] = Field(default_factory=dict)
    endpoints: dict[
        Name, Annotated[tuple[Annotated[EndpointFlag, one_of(EndpointFlag)], ...], list_of("flags", len(EndpointFlag))]
    ] = Field(default_factory=dict)
    limits: Limits = Limits()
    qdiscs: dict[Name, Text] = Field(default_factory=dict)


class LinkSection(Section):
    """A link: two ends, or more with a bridge between; what it does to packets, the same in all directions.

    `bridged`: an access network. The end of the host that forwards is a bridge, and every other end has a link of its
    own to it, with a rate of its own. `reorder`: of packets, those that skip the delay, at most one of `gap`.
    `lossy_ends`: only packets sent from these ends are lost; None: from all.
    `burst`: the bucket of tbf(8); None: what the rate carries in 1 ms, at least 16 kB.
    """

    ends: Annotated[tuple[PortText, ...], list_of("ends", MAX_ENDS), AfterValidator(each_once)]
    rate: RateOrNull = None
    delay: DurationText = 0.0
    jitter: DurationText = 0.0
    loss: Percent = 0.0
    lossy_ends: Annotated[tuple[PortText, ...], list_of("ends", MAX_ENDS), AfterValidator(each_once)] | None = None
    reorder: Percent = 0.0
    gap: Annotated[int, whole(1, 1000)] = 1
    queue: QueueText = Queue(0.05, None)
    burst: Amount | None = None
    mtu: Annotated[int, whole(576, 9000)] = 1500
    families: Families = (4, 6)
    bridged: Flag = False

    @property
    def shared(self) -> bool:
        """Whether a bridge of its own is between the ends."""
        return len(self.ends) > 2 and not self.bridged

    @property
    def emulated(self) -> bool:
        """Whether it takes netem to make it."""
        return bool(self.delay or self.jitter or self.loss or self.reorder)

    def at(self, end: Port) -> LinkSection:
        """What the link does to packets that enter it at this end, all ends being alike but for `lossy_ends`."""
        is_lossless = self.lossy_ends is not None and end not in self.lossy_ends
        return self.model_copy(update={"loss": 0.0}) if is_lossless else self


class ThrottledNetwork(RatesSection):
    """An access network of our services: the subnets of one link."""

    link: Name
    preference: Annotated[int, whole(1, 1000)]
    per: Annotated[Per, one_of(Per)] = Per.CLIENT
    overflow: RateOrNull = None
    budgets: tuple[BudgetSection, ...] = ()


class ThrottleSection(Section):
    """The configuration of our services."""

    networks: dict[Name, ThrottledNetwork]
    linger: Text = "2s"
    classifier: Annotated[ClassifierKind, one_of(ClassifierKind)] = ClassifierKind.AUTO


class ControllerSection(Section):
    """The controller of the switches: what it does when a link fails, `detection` seconds later.

    Connections begin on the `primary` of the paths between two hosts, from 1, the shortest first.
    """

    recovery: Annotated[Recovery, one_of(Recovery)] = Recovery.NONE
    detection: DurationText = 0.1
    primary: Annotated[int, whole(1, 8)] = 1


class FlowSection(Section):
    """Data from `sender` to `receiver`: a file through the server of `via`, or by iperf3 directly.

    Through a server, one of them is the origin server: a download comes from it, an upload goes to it. Without a
    `size`, the flow goes on until the run ends, or for its `duration`. `check`: what arrives through a server is
    compared with what was sent, as it always is without a `size`, and of an upload.
    """

    sender: HostName = Field(alias="from")
    receiver: HostName = Field(alias="to")
    via: HostName | None = None
    protocol: Annotated[Protocol, one_of(Protocol)] = Protocol.MPTCP
    family: Annotated[int, whole(4, 6)] = 4
    over: Name | None = None
    size: Amount | None = None
    check: Flag = False
    start: DurationText = 0.0
    duration: DurationText | None = None
    rate: RateOrNull = None

    @property
    def has_mappings(self) -> bool:
        """Whether the receiver gets DSS mappings, in packets that come to a port of the flow's own."""
        return self.via is None and self.protocol is Protocol.MPTCP


class EventSection(Section):
    """Something that happens at a moment: one of down, up, leave, join, link, outage, endpoint, throttle.

    An `outage` is that a link between switches drops all packets, for so many `seconds`.

    Other moments may refer to it by its `name`.
    """

    at: MomentText
    name: Name | None = None
    down: PortText | None = None
    up: PortText | None = None
    leave: PortText | None = None
    join: PortText | None = None
    link: Name | None = None
    rate: RateOrNull = None
    delay: DurationText | None = None
    jitter: DurationText | None = None
    loss: Percent | None = None
    queue: QueueText | None = None
    outage: Name | None = None
    seconds: DurationText | None = None
    endpoint: PortText | None = None
    backup: Flag | None = None
    throttle: Text | None = None


class WindowSection(Section):
    """A part of the run."""

    begin: MomentText = Field(default=Moment(0.0), alias="from")
    end: MomentText | None = Field(default=None, alias="to")


class FigureSection(WindowSection):
    """A figure to report: one of `UNITS`, measured in a part of the run, which may be one that has a name."""

    rate: Links | None = None
    volume: Links | None = None
    received: Name | None = None
    over: Links | None = None
    payload: Name | None = None
    goodput: Name | None = None
    seconds: Name | None = None
    gap: Name | None = None
    join_to_cap: Name | None = None
    capped: Name | None = None
    lift: Name | None = None
    backups: Name | None = None
    restored: HostName | None = None
    counter: Text | None = None
    per: Text | None = None
    without: Text | None = None
    out_of_order: Name | None = None
    out_of_order_in_subflows: Name | None = None
    out_of_order_buffer: Name | None = None
    reorder_extent: Name | None = None
    reassembly_wait: Name | None = None
    outage_length: Name | None = None
    completion: Annotated[int, whole(0, 100)] | None = None
    path_setup: Annotated[int, whole(0, 100)] | None = None
    window: Text | None = None
    seed: Number | None = None
    within: Percent = 25.0
    not_comparable: Text | None = None
    why: Text | None = None

    @property
    def kind(self) -> str:
        """What is measured."""
        return next(kind for kind in UNITS if getattr(self, kind) is not None)

    @property
    def unit(self) -> str:
        """Of its number."""
        return UNITS[self.kind] if self.per is None else "%"


UNITS: Final = {
    "rate": "Mb/s",
    "volume": "MB",
    "received": "Mb/s",
    "payload": "MB",
    "goodput": "Mb/s",
    "seconds": "s",
    "gap": "s",
    "join_to_cap": "ms",
    "capped": "",
    "lift": "s",
    "backups": "",
    "restored": "",
    "counter": "",
    "out_of_order": "%",
    "out_of_order_in_subflows": "%",
    "out_of_order_buffer": "kB",
    "reorder_extent": "packets",
    "reassembly_wait": "ms",
    "outage_length": "ms",
    "completion": "s",
    "path_setup": "ms",
}
"""What a figure can measure, and in what."""

OF_CAPTURES: Final = (
    "out_of_order",
    "out_of_order_in_subflows",
    "out_of_order_buffer",
    "reorder_extent",
    "reassembly_wait",
)
"""Those that take a capture where a flow arrives."""

CAP: Final = "cap"
"""The event that the first cap of a run is in the kernel."""

_OF_NETWORKS: Final = ("join_to_cap", "capped", "lift", "backups")
_ACTIONS: Final = ("down", "up", "leave", "join", "link", "outage", "endpoint", "throttle")
_SHAPE: Final = ("rate", "delay", "jitter", "loss", "queue")


class ExpectationSection(Section):
    """What must hold, perhaps on one kernel only: a figure, divided by another one or by a number, is in a range.

    Or it differs from it by no more than `near`.
    """

    of: Annotated[float | str, PlainValidator(_figure)]
    to: Annotated[float | str, PlainValidator(_figure)] = 1.0
    at_least: Number | None = None
    at_most: Number | None = None
    near: Number | None = None
    kernel: Annotated[Kernel, one_of(Kernel)] | None = None


class Network(Section):
    """Hosts and the links between them. `in_order`: see `mptcp_lab.scenario.world`."""

    hosts: dict[HostName, HostSection]
    links: dict[Name, LinkSection]
    in_order: Flag = False

    @property
    def emulated(self) -> bool:
        """Whether it takes netem."""
        return any(link.emulated for link in self.links.values())

    @property
    def switches(self) -> list[str]:
        """The hosts that are switches of a controller."""
        return [name for name, host in self.hosts.items() if host.node is Node.OVS]

    @property
    def sends_single_packets(self) -> bool:
        """Whether hosts must send packet by packet.

        netem delays, loses and reorders what it is given; Open vSwitch does not cut what is larger in every datapath.
        """
        return self.emulated or bool(self.switches)

    def link_of(self, port: Port) -> str:
        """The name of the link that ends there."""
        return next(name for name, link in self.links.items() if port in link.ends)

    def ports(self, host: str) -> Iterator[tuple[Port, str]]:
        """The interfaces of a host, in the order of the links, and the link of each."""
        for name, link in self.links.items():
            for port in link.ends:
                if port.host == host:
                    yield port, name

    def families(self, port: Port) -> list[int]:
        """The address families of an interface: those of its link that its host has; none of a switch."""
        if self.hosts[port.host].node is Node.OVS:
            return []
        return [
            family for family in self.links[self.link_of(port)].families if family in self.hosts[port.host].families
        ]

    def gateway(self, link: str) -> Port | None:
        """The end of the link at the host that forwards."""
        return next((port for port in self.links[link].ends if self.hosts[port.host].forward), None)


class Scenario(Network):
    """A scenario, or one variant of it."""

    title: Text
    seed: Text | None = None
    why: Text | None = None
    kernel: Annotated[Kernel, one_of(Kernel)] | None = None
    scale: Annotated[float, number(0.001, 10**6)] = 1.0
    duration: DurationText
    until: MomentText | None = None
    interval: DurationText = 0.1
    repeat: Annotated[int, whole(1, 100)] = 1
    throttle: ThrottleSection | None = None
    controller: ControllerSection | None = None
    flows: dict[Name, FlowSection]
    events: Annotated[tuple[EventSection, ...], list_of("events", 1000)] = ()
    windows: dict[Text, WindowSection] = Field(default_factory=dict)
    report: dict[Name, FigureSection]
    expect: dict[Text, ExpectationSection] = Field(default_factory=dict)

    @property
    def emulated(self) -> bool:
        """Whether it takes netem, from the start or after an event."""
        changes = ((event.delay, event.jitter, event.loss) for event in self.events)
        return super().emulated or any(any(change) for change in changes)

    @property
    def sends_single_packets(self) -> bool:
        """See `Network`; and captures are counted in packets."""
        return super().sends_single_packets or any(figure.kind in OF_CAPTURES for figure in self.report.values())

    def part(self, figure: FigureSection) -> WindowSection:
        """The part of the run in which a figure is measured."""
        return figure if figure.window is None else self.windows[figure.window]

    def is_upload(self, flow: str) -> bool:
        """Whether the flow goes through a server to the origin server."""
        section = self.flows[flow]
        return section.via is not None and Program.ORIGIN in self.hosts[section.receiver].run

    def client_of(self, flow: str) -> HostName:
        """The end of a flow through a server that asks for it."""
        return self.flows[flow].sender if self.is_upload(flow) else self.flows[flow].receiver

    def client_programs(self) -> dict[str, tuple[ProxyServer, str]]:
        """By client, the program through which it reaches a server, and the host of that."""
        vias = {self.client_of(name): flow.via for name, flow in self.flows.items() if flow.via is not None}
        kinds = ((client, via, self.hosts[via].server) for client, via in vias.items())
        return {
            client: (kind.program.client, via)
            for client, via, kind in kinds
            if kind is not None and kind.program.client is not None
        }

    def host_running(self, program: Program) -> str | None:
        """The host that runs the program."""
        return next((name for name, host in self.hosts.items() if program in host.run), None)


def problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    """What the sections cannot see one by one: where, and what is wrong there and allowed."""
    yield from _link_problems(scenario)
    yield from _host_problems(scenario)
    yield from _throttle_problems(scenario)
    yield from _switch_problems(scenario)
    yield from _flow_problems(scenario)
    yield from _event_problems(scenario)
    yield from _moment_problems(scenario)
    yield from _figure_problems(scenario)


def _one_of_these(names: object) -> str:
    return f"allowed: {', '.join(map(str, names)) or 'none, there is none'}"  # type: ignore[call-overload]


def _ports(scenario: Scenario) -> list[Port]:
    return [port for link in scenario.links.values() for port in link.ends]


def _link_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    if len(scenario.links) > MAX_LINKS:
        yield ("links",), f"allowed: up to {MAX_LINKS}"
    seen: set[Port] = set()
    for name, link in scenario.links.items():
        keys: KeyPath = ("links", name)
        if len(link.ends) < 2:
            yield (*keys, "ends"), f"allowed: 2 to {MAX_ENDS} ends"
        for number_, port in enumerate(link.ends):
            if port.host not in scenario.hosts:
                yield (*keys, "ends", number_), f"there is no such host; {_one_of_these(scenario.hosts)}"
            if port in seen:
                yield (*keys, "ends", number_), "is an end of another link; allowed: an interface of its own"
            seen.add(port)
        if set(link.families) - {4, 6}:
            yield (*keys, "families"), "allowed: 4, 6 or both"
        if link.bridged and scenario.gateway(name) is None:
            yield (*keys, "bridged"), "needs an end at a host that forwards"
        if link.mtu < 1280 and 6 in link.families:
            yield (*keys, "mtu"), "is too small for IPv6; allowed: 1280 or more, or families: [4]"
        if link.jitter and link.rate is None:
            yield (*keys, "jitter"), "needs a rate: without it packets overtake each other"
        if link.jitter > link.delay:
            yield (*keys, "jitter"), "is more than delay"
        if link.reorder and not link.delay:
            yield (*keys, "reorder"), "needs a delay, which the packets that overtake others skip"
        if link.gap > 1 and not link.reorder:
            yield (*keys, "gap"), "needs reorder"
        if link.lossy_ends is not None and (link.shared or link.bridged or not link.loss):
            yield (*keys, "lossy_ends"), "needs a loss, and a link with two ends that is not bridged"
        for port in link.lossy_ends or ():
            if port not in link.ends:
                yield (*keys, "lossy_ends"), f"{port} is no end of it; {_one_of_these(link.ends)}"


def _host_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    forwarding = [name for name, host in scenario.hosts.items() if host.forward]
    if len(forwarding) > 1:
        yield ("hosts", forwarding[1], "forward"), f"allowed: one host that forwards, which is {forwarding[0]}"
    for name, host in scenario.hosts.items():
        interfaces = [port.interface for port, _ in scenario.ports(name)]
        if not interfaces:
            yield ("hosts", name), "is at no link; allowed: hosts that links connect"
        for key in ("addresses", "endpoints", "qdiscs"):
            for interface in getattr(host, key):
                if interface not in interfaces:
                    yield ("hosts", name, key, interface), f"no such interface; {_one_of_these(interfaces)}"
        if set(host.families) - {4, 6}:
            yield ("hosts", name, "families"), "allowed: 4, 6 or both"
        is_reverse = host.server is not None and host.server.program.access is Access.REVERSE
        if is_reverse and scenario.host_running(Program.ORIGIN) is None:
            yield ("hosts", name, "server"), "needs a host that runs origin"


def _throttle_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    host = scenario.host_running(Program.THROTTLE)
    if (host is None) != (scenario.throttle is None):
        yield ("throttle",), "allowed: if and only if a host runs throttle"
    if host is not None and len(list(scenario.ports(host))) != 1:
        yield ("hosts", host, "run"), "throttle needs a host with one interface"
    for name, network in () if scenario.throttle is None else scenario.throttle.networks.items():
        if network.link not in scenario.links:
            yield ("throttle", "networks", name, "link"), f"no such link; {_one_of_these(scenario.links)}"


def _switch_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    switches = scenario.switches
    if bool(switches) != (scenario.controller is not None):
        yield ("controller",), "allowed: if and only if a host is a switch (node: ovs)"
    for name in switches:
        host = scenario.hosts[name]
        if host != HostSection(node=Node.OVS):
            yield ("hosts", name), "a switch (node: ovs) has no other key"
    for name, link in scenario.links.items() if switches else ():
        if len(link.ends) != 2:
            yield ("links", name, "ends"), "allowed: two ends, where hosts are switches"
        if link.families != (4,):
            yield ("links", name, "families"), "allowed: [4], where hosts are switches"
    for name in () if not switches else scenario.hosts:
        if name not in switches and len(list(scenario.ports(name))) != 1:
            yield ("hosts", name), "allowed: one interface, where other hosts are switches"


def _flow_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    for name, flow in scenario.flows.items():
        keys: KeyPath = ("flows", name)
        for key, host in (("from", flow.sender), ("to", flow.receiver), ("via", flow.via)):
            if host is not None and host not in scenario.hosts:
                yield (*keys, key), f"no such host; {_one_of_these(scenario.hosts)}"
                return
        if flow.over is not None and flow.over not in scenario.links:
            yield (*keys, "over"), f"no such link; {_one_of_these(scenario.links)}"
        if flow.family not in {4, 6}:
            yield (*keys, "family"), "allowed: 4 or 6"
        if flow.via is not None:
            if scenario.hosts[flow.via].server is None:
                yield (*keys, "via"), "this host has no server"
            if Program.ORIGIN not in scenario.hosts[flow.sender].run + scenario.hosts[flow.receiver].run:
                yield (*keys, "from"), "neither this host nor the other host runs origin"
            rates = [scenario.links[link].rate for _, link in scenario.ports(flow.receiver)]
            if flow.size is None and None in rates:
                yield (*keys, "size"), "is required where a link of the receiver has no rate"
            if flow.size is None and scenario.is_upload(name):
                yield (*keys, "size"), "is required of an upload"
            if flow.protocol not in {Protocol.MPTCP, Protocol.TCP}:
                yield (*keys, "protocol"), "allowed with via: mptcp, tcp"
            yield from _socks_problems(scenario, name, flow.via)
        elif flow.check:
            yield (*keys, "check"), "needs via"
        if flow.size is not None and (flow.duration is not None or flow.protocol is Protocol.UDP):
            yield (*keys, "size"), "allowed: size or duration, and not for udp"
        if (flow.rate is None) != (flow.protocol is not Protocol.UDP):
            yield (*keys, "rate"), "is for udp, which needs it"
        if flow.start >= scenario.duration:
            yield (*keys, "start"), "is not before the end of the scenario (duration)"
        if flow.size is not None and scenario.until is not None:
            yield ("until",), f"allowed: only without flows with a size, which {name} is"


def _socks_problems(scenario: Scenario, name: str, via: str) -> Iterator[tuple[KeyPath, str]]:
    """What a flow cannot choose where a program on the client connects to the server, once for all flows."""
    flow, kind = scenario.flows[name], scenario.hosts[via].server
    if kind is None or kind.program.access is not Access.SOCKS:
        return
    client = scenario.client_of(name)
    if any(f.via not in {None, via} and scenario.client_of(n) == client for n, f in scenario.flows.items()):
        yield ("flows", name, "via"), f"allowed where a flow goes through {kind}: all flows of the client through it"
    first = next((link for _, link in scenario.ports(client)), None)
    if flow.protocol is not Protocol.MPTCP or flow.family != 4 or flow.over not in {None, first}:
        yield ("flows", name, "via"), f"allowed through {kind}: protocol mptcp, family 4, over the client's first link"


def _moment_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    known = [] if scenario.throttle is None else [CAP]
    moments: list[tuple[KeyPath, Moment | None]] = []
    for number_, event in enumerate(scenario.events):
        if event.at.event is not None and event.at.event not in known:
            yield ("events", number_, "at"), f"no such event before this one; {_one_of_these(known)}"
        if event.name is not None and event.name in [CAP, *known]:
            yield ("events", number_, "name"), "is the name of another event"
        known += [event.name] if event.name is not None else []
    moments.append((("until",), scenario.until))
    for section, parts in (("windows", scenario.windows), ("report", scenario.report)):
        for name, part in parts.items():
            moments += [((section, name, "from"), part.begin), ((section, name, "to"), part.end)]
            same = part.end is not None and part.begin.event == part.end.event
            if same and part.end is not None and part.end.seconds <= part.begin.seconds:
                yield (section, name, "to"), "is not after from"
    for keys, moment in moments:
        if moment is not None and moment.event is not None and moment.event not in known:
            yield keys, f"no such event; {_one_of_these(known)}"


def _event_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    ports = _ports(scenario)
    for number_, event in enumerate(scenario.events):
        keys: KeyPath = ("events", number_)
        actions = [action for action in _ACTIONS if getattr(event, action) is not None]
        if len(actions) != 1:
            yield keys, f"allowed: exactly one of {', '.join(_ACTIONS)}"
            continue
        subject = getattr(event, actions[0])
        if isinstance(subject, Port) and subject not in ports:
            yield (*keys, actions[0]), f"no such end of a link; {_one_of_these(ports)}"
        shape = [key for key in _SHAPE if getattr(event, key) is not None]
        if event.link is not None and (event.link not in scenario.links or not shape):
            yield (*keys, "link"), f"allowed: a link ({', '.join(scenario.links)}), with one of {', '.join(_SHAPE)}"
        if event.link is None and shape:
            yield (*keys, shape[0]), "needs link"
        if isinstance(subject, Port) and subject.host in scenario.switches:
            yield (*keys, actions[0]), "is an end at a switch; allowed: outage"
        between = [
            n for n, link in scenario.links.items() if {port.host for port in link.ends} <= set(scenario.switches)
        ]
        if event.outage is not None and event.outage not in between:
            yield (*keys, "outage"), f"allowed: a link between switches; {_one_of_these(between)}"
        if (event.outage is None) != (event.seconds is None):
            yield keys, "allowed: outage and seconds together"
        if (event.endpoint is None) != (event.backup is None):
            yield keys, "allowed: endpoint and backup together"
        if event.throttle is not None and scenario.throttle is None:
            yield (*keys, "throttle"), "no host runs throttle"


def _figure_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    for name, figure in scenario.report.items():
        keys: KeyPath = ("report", name)
        kinds = [kind for kind in UNITS if getattr(figure, kind) is not None]
        if len(kinds) != 1:
            yield keys, f"allowed: exactly one of {', '.join(UNITS)}"
            continue
        known: object = scenario.flows
        if kinds[0] in _OF_NETWORKS:
            known = {} if scenario.throttle is None else scenario.throttle.networks
        elif kinds[0] == "outage_length":
            known = [event.name for event in scenario.events if event.outage is not None]
        elif kinds[0] == "restored":
            known = [host for host in [scenario.host_running(Program.THROTTLE)] if host is not None]
        wanted = getattr(figure, kinds[0])
        for key, text in (("counter", figure.counter), ("per", figure.per), ("without", figure.without)):
            if text is not None and (text.split(".")[0] not in scenario.hosts or text.count(".") != 1):
                yield (*keys, key), "allowed: HOST.COUNTER, such as proxy.TcpRetransSegs"
        if figure.without is not None and figure.per is None:
            yield (*keys, "without"), "needs per"
        if figure.completion is not None and all(flow.size is None for flow in scenario.flows.values()):
            yield (*keys, "completion"), "needs flows with a size"
        if figure.path_setup is not None and not scenario.switches:
            yield (*keys, "path_setup"), "needs a switch (node: ovs)"
        if figure.per is not None and figure.counter is None:
            yield (*keys, "per"), "needs counter"
        is_name = isinstance(wanted, str) and kinds[0] != "counter"
        if is_name and wanted not in known:  # type: ignore[operator]
            yield (*keys, kinds[0]), f"no such name; {_one_of_these(known)}"
        elif kinds[0] in OF_CAPTURES and not scenario.flows[wanted].has_mappings:
            yield (*keys, kinds[0]), "allowed: a flow without via, of the protocol mptcp"
        for key in ("rate", "volume", "over"):
            for link in getattr(figure, key) or ():
                if link not in scenario.links:
                    yield (*keys, key), f"no such link: {link}; {_one_of_these(scenario.links)}"
        if figure.over is not None and figure.received is None:
            yield (*keys, "over"), "needs received"
        if figure.window is not None and figure.window not in scenario.windows:
            yield (*keys, "window"), f"no such window; {_one_of_these(scenario.windows)}"
        if figure.window is not None and (figure.begin != Moment(0.0) or figure.end is not None):
            yield (*keys, "window"), "allowed: window, or from and to"
    for name, expectation in scenario.expect.items():
        for key, reference in (("of", expectation.of), ("to", expectation.to)):
            if isinstance(reference, str) and "/" not in reference and reference not in scenario.report:
                yield ("expect", name, key), f"no such figure; {_one_of_these(scenario.report)}"
        in_range = expectation.at_least is not None or expectation.at_most is not None
        if in_range == (expectation.near is not None):
            yield ("expect", name), "allowed: at_least, at_most or both; or near"
