"""What a scenario file may say. Every key is explained in docs/contribute/lab.md.

Times are in seconds, amounts of data in bytes, shares in percent, rates of figures in Mb/s.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import AfterValidator, Field, PlainValidator

from mptcp_lab.port import Port
from mptcp_lab.scenario.quantities import Amount, ClockText, Moment, MomentText, Percent, Queue, QueueText, number
from mptcp_lab.scenario.seed_section import Cited, EffectSection, SeedSection, Text
from mptcp_lab.servers import ServerKind
from mptcp_throttle.config.network_schema import BudgetSection, Burst, RatesSection, ReplacingRatesSection
from mptcp_throttle.config.network_schema import WindowSection as ScheduleSection
from mptcp_throttle.config.validation import (
    DurationText,
    Flag,
    Name,
    RateOrNull,
    Section,
    each_once,
    list_of,
    one_of,
    parsed_by,
    text_that,
    whole,
)
from mptcp_throttle.model import ClassifierKind, Per

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_lab.proxy_server import ProxyServer

MAX_LINKS: Final = 50
MAX_ENDS: Final = 9
LATEST_KERNEL: Final = "debian-6.12"
"""The guest's kernel, where this machine's lacks something."""


class Kernel(StrEnum):
    """Where a scenario runs: on this machine's kernel, or on a stock one in the guest."""

    NATIVE = "native"
    DEBIAN_6_1 = "debian-6.1"
    DEBIAN_6_12 = LATEST_KERNEL


class Program(StrEnum):
    """What a host of the S0 topology runs, besides a server."""

    THROTTLE = "throttle"
    ORIGIN = "origin"


class Method(StrEnum):
    """How our services throttle: as they do by default, or as config/examples/thesis says."""

    DEFAULT = "default"
    THESIS = "thesis"


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

    `bridged`: an access network. The end at the host that forwards is a bridge. Every other end has its own link to it,
    with its own rate. `reorder`: the packets that skip the delay, in percent, at most one of `gap`.
    `lossy_ends`: only packets sent from these ends are lost; None: from all.
    `burst`: the bucket of tbf(8); None: what the rate carries in 1 ms, at least 16 kB.
    `trace`: the number of the trace of Wi-Fi that its rate follows in run 1, and the next trace in run 2; `rate` is the
    first rate.
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
    trace: Annotated[int, whole(1, 10**6)] | None = None

    @property
    def shared(self) -> bool:
        """Whether a bridge of its own is between the ends."""
        return len(self.ends) > 2 and not self.bridged

    @property
    def emulated(self) -> bool:
        """Whether it needs netem."""
        return bool(self.delay or self.jitter or self.loss or self.reorder)

    @property
    def at_once(self) -> LinkSection:
        """The same link without what needs netem."""
        return self.model_copy(update={"delay": 0.0, "jitter": 0.0, "loss": 0.0, "reorder": 0.0})

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
    burst: Burst = None
    schedule: tuple[ScheduleSection, ...] = ()
    budgets: tuple[BudgetSection, ...] = ()


class ThrottledDevice(Section):
    """A host with a name: the addresses that it has on the links of these networks, and its own rates there."""

    host: HostName
    networks: dict[Name, ReplacingRatesSection]


class ThrottleSection(Section):
    """The configuration of our services. The daemon's wall clock begins with `clock`; None: it is the host's.

    The keys of `method` take precedence over `classifier`.
    """

    networks: dict[Name, ThrottledNetwork]
    devices: dict[Name, ThrottledDevice] = Field(default_factory=dict)
    clock: ClockText | None = None
    linger: Text = "2s"
    classifier: Annotated[ClassifierKind, one_of(ClassifierKind)] = ClassifierKind.AUTO
    method: Annotated[Method, one_of(Method)] = Method.DEFAULT


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
    compared with what was sent, as it always is without a `size`, and for an upload. `video`: how many seconds a player
    on the receiver plays.
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
    video: DurationText | None = None

    @property
    def is_limited(self) -> bool:
        """Whether it ends when all data have come."""
        return self.size is not None or self.video is not None

    @property
    def has_mappings(self) -> bool:
        """Whether the receiver gets DSS mappings, in packets that come to a port of the flow's own."""
        return self.via is None and self.protocol is Protocol.MPTCP


class EventSection(Section):
    """Something that happens at a moment: one of down, up, leave, join, link, outage, endpoint, throttle, clock.

    In an `outage`, a link between switches drops all packets for `seconds`.

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
    clock: ClockText | None = None


class WindowSection(Section):
    """A part of the run."""

    begin: MomentText = Field(default=Moment(0.0), alias="from")
    end: MomentText | None = Field(default=None, alias="to")


class FigureSection(WindowSection):
    """A figure to report: one of `UNITS`, measured in a part of the run, which may be one that has a name.

    `limit`: the links whose rates together bound it; None: those that it measures, if it names any.
    """

    rate: Links | None = None
    volume: Links | None = None
    received: Name | None = None
    subflow_bytes: Name | None = None
    subflow_packets: Name | None = None
    over: Links | None = None
    payload: Name | None = None
    goodput: Name | None = None
    seconds: Name | None = None
    gap: Name | None = None
    stalls: Name | None = None
    bitrate: Name | None = None
    least_volume: Name | None = None
    join_to_cap: Name | None = None
    capped: Name | None = None
    lift: Name | None = None
    backups: Name | None = None
    used: Name | None = None
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
    limit: Links | None = None
    seed: Annotated[Cited, parsed_by(Cited.parse)] | None = None
    within: Percent = 25.0
    not_comparable: Text | None = None
    why: Text | None = None

    @property
    def kind(self) -> str:
        """What is measured."""
        return next(kind for kind in UNITS if getattr(self, kind) is not None)

    @property
    def limits(self) -> tuple[str, ...]:
        """The links whose rates together bound it; none if it is not known to be bound by any."""
        return self.limit or self.rate or (self.over if self.received is not None else None) or ()

    @property
    def unit(self) -> str:
        """The unit of the figure."""
        return UNITS[self.kind] if self.per is None else "%"


UNITS: Final = {
    "rate": "Mb/s",
    "volume": "MB",
    "received": "Mb/s",
    "subflow_bytes": "bytes",
    "subflow_packets": "packets",
    "payload": "MB",
    "goodput": "Mb/s",
    "seconds": "s",
    "gap": "s",
    "stalls": "",
    "bitrate": "Mb/s",
    "least_volume": "MB",
    "join_to_cap": "ms",
    "capped": "",
    "lift": "s",
    "backups": "",
    "used": "MB",
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
"""The figures that need a capture where a flow arrives."""

CAP: Final = "cap"
"""The event that the first cap of a run is in the kernel."""

OF_SUBFLOWS: Final = ("received", "subflow_bytes", "subflow_packets")
"""The figures of the sockets at which a flow arrives."""

OF_VIDEOS: Final = ("stalls", "bitrate", "least_volume")
"""The figures of a player."""

OF_NETWORKS: Final = ("join_to_cap", "capped", "lift", "backups", "used")
"""The figures of an access network of our services."""

ACTIONS: Final = ("down", "up", "leave", "join", "link", "outage", "endpoint", "throttle", "clock")
"""What an event does: one of these."""

SHAPE: Final = ("rate", "delay", "jitter", "loss", "queue")
"""What an event changes of a link: some of these."""


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
        """Whether it needs netem."""
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
    seed: SeedSection | None = None
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
    effects: dict[Text, EffectSection] = Field(default_factory=dict)

    @property
    def emulated(self) -> bool:
        """Whether it needs netem, from the start or after an event."""
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
        """The program through which each client reaches a server, and the host of the server, by client."""
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
