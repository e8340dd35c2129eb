"""The schema of the configuration files, and the frozen `Config` that is made of valid files."""

from __future__ import annotations

import grp
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Self
from zoneinfo import TZPATH, ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainValidator

from mptcp_throttle.config.fleet_section import FleetSection
from mptcp_throttle.config.password_hash import PasswordHash
from mptcp_throttle.config.subnets import parse_prefix, parse_subnet
from mptcp_throttle.config.validation import (
    DurationText,
    Flag,
    Name,
    RateOrNull,
    Section,
    each_once,
    is_name,
    list_of,
    mapping_of,
    one_of,
    parsed_by,
    text_that,
    whole,
)
from mptcp_throttle.config.yaml_file import KeyPath
from mptcp_throttle.errors import ConfigError, shown
from mptcp_throttle.model import (
    AFTER_NAT,
    BEFORE_NAT,
    AccessNetwork,
    Address,
    BackEnd,
    Budget,
    ClassifierKind,
    ClientPrefix,
    Counting,
    Device,
    Direction,
    Endpoint,
    Every,
    Health,
    LogLevel,
    Network,
    Per,
    RateKind,
    Stage,
    Trust,
    Window,
)
from mptcp_throttle.network_namespace import Container, parse_namespace
from mptcp_throttle.policy_bundle.kept_policy import KeptPolicy
from mptcp_throttle.ports import parse_range
from mptcp_throttle.proxies import MAX_INTERFACES, MAX_PROXIES, Proxies, Proxy
from mptcp_throttle.units import Rate, parse_burst, parse_duration, parse_share, parse_size, parse_volume
from mptcp_throttle.when import WEEKDAYS, When

NETWORKS_DIRECTORY: Final = "networks.d"
CLIENTS_DIRECTORY: Final = "clients.d"
RATE_KEYS: Final[dict[RateKind, KeyPath]] = {
    RateKind.CAP: ("cap",),
    RateKind.LIMIT: ("limit",),
    RateKind.UPLINK_CAP: ("uplink", "cap"),
    RateKind.UPLINK_LIMIT: ("uplink", "limit"),
}
"""The keys of a network file."""

_RUN_DIRECTORY: Final = "/run/mptcp-throttle"
# Each service has a directory of its own there, since each runs as a user of its own.
_SNIFFER_SOCKET: Final = "sniffer/sniffer.sock"
_DAEMON_SOCKET: Final = "daemon/daemon.sock"
_METRICS_SOCKET: Final = "daemon/metrics.sock"
_WEB_SOCKET: Final = "web/web.sock"
# sun_path has 108 bytes (include/uapi/linux/un.h); Python needs the last for a zero.
_MAX_RUN_DIRECTORY: Final = 107 - len(f"/{_SNIFFER_SOCKET}")
_MASKS: Final = "allowed: 8 to 16 adjacent bits of 32, such as 0xffff0000"
_MAX_CONTROL_GROUP: Final = 0.5
_UNLIMITED: Final = "unlimited"
# What the directory of time zones has besides: with leap seconds, and what no zone is named after.
_NO_ZONES: Final = frozenset({"right", "posix", "posixrules", "localtime", "Factory"})
# Words that are no text in YAML 1.1.
_NO_NAMES: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_MAX_WINDOWS: Final = 64
_MAX_BUDGETS: Final = 8
_MONTH_DAYS: Final = 31
_MAX_STAGES: Final = 8
_MAX_ADDRESSES: Final = 64
MAX_DEVICE_NETWORKS: Final = 64
MAX_PORT_ITEMS: Final = 64
"""The most ports and ranges of all proxies. Each makes the programs that select packets longer (`jump_by_port`)."""
_HOST_NAME: Final = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.ASCII
)


def _holds_sockets(text: str) -> bool:
    return os.path.isabs(text) and len(os.fsencode(Path(text))) <= _MAX_RUN_DIRECTORY


def _is_interface(text: str) -> bool:
    # dev_valid_name() in net/core/dev.c, where isspace() knows Latin-1; IFNAMSIZ is 16 with the terminating zero.
    return text not in {".", ".."} and re.fullmatch(rb"[^/:\s\xa0]{1,15}", text.encode()) is not None


def _mark_mask(text: str) -> int:
    try:
        mask = int(text, 0)
    except ValueError as error:
        raise ValueError(f"is not a number; {_MASKS}") from error
    lowest = mask & -mask
    if not 0 < mask < 2**32 or (mask + lowest) & mask or mask // lowest < 0xFF or mask // lowest > 0xFFFF:
        raise ValueError(_MASKS)
    return mask


def _control_group(text: str) -> float:
    with suppress(ValueError):
        share = parse_share(text)
        if share <= _MAX_CONTROL_GROUP:
            return share
    raise ValueError("allowed: 0% to 50%, or null")


def _time_zone(text: str) -> ZoneInfo:
    allowed = "allowed: an IANA name, such as Europe/Berlin, or null"
    try:
        if text.partition("/")[0] in _NO_ZONES:
            raise ValueError(allowed)
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        is_missing = not any(Path(directory).is_dir() for directory in TZPATH)
        raise ValueError("needs the package tzdata" if is_missing else allowed) from error


def _replacing_rate(text: str) -> Rate | None:
    try:
        return None if text == _UNLIMITED else Rate.parse(text)
    except ValueError as error:
        raise ValueError(f"{error}; or {_UNLIMITED}") from error


def _start(value: object) -> int | str:
    if value in WEEKDAYS or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MONTH_DAYS):
        return value
    raise ValueError(f"allowed: a day of the month from 1 to {_MONTH_DAYS}, or of the week, such as Mon; or null")


def _budget_per(value: object) -> Per:
    if value not in (Per.NETWORK, Per.CLIENT):
        raise ValueError("allowed: network, client")
    return Per(str(value))


def _stages(value: object) -> object:
    stages = [value] if isinstance(value, dict) else value
    if not isinstance(stages, list) or not 1 <= len(stages) <= _MAX_STAGES:
        raise ValueError(f"allowed: a mapping with cap, limit or uplink, or a list of 1 to {_MAX_STAGES} such stages")
    return stages


def _disjoint(ranges: tuple[range, ...]) -> tuple[range, ...]:
    for first, second in pairwise(sorted(ranges, key=lambda each: each.start)):
        if second.start < first.stop:
            raise ValueError(f"has port {second.start} twice; allowed: each port once")
    return ranges


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address and a TCP port at which a service listens."""

    host: Address
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `127.0.0.1:9721` or `[::1]:9721`. Raises ValueError."""
        match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+)):([0-9]{1,5})", text, re.ASCII)
        with suppress(ValueError):
            if match is not None and 0 < int(match[3]) < 65536:
                return cls(ip_address(match[1] or match[2]), int(match[3]))
        raise ValueError("allowed: an IP address and a port, such as 127.0.0.1:9721 or [::1]:9721, or null")

    def overlaps(self, second: ListenAddress) -> bool:
        """Whether only one service can listen at both: `[::]` may include IPv4 (bindv6only in ip-sysctl)."""
        if self.port != second.port:
            return False
        if self.host == second.host:
            return True
        latest = max(self.host.version, second.host.version)
        return any(host.is_unspecified and host.version >= latest for host in (self.host, second.host))

    def __str__(self) -> str:
        return str(Endpoint(self.host, self.port))


Listen = Annotated[ListenAddress, parsed_by(ListenAddress.parse)]
RunDirectory = Annotated[
    str, text_that(_holds_sockets, f"an absolute path of up to {_MAX_RUN_DIRECTORY} bytes: it holds sockets")
]
InterfaceName = Annotated[str, text_that(_is_interface, "the name of an interface: up to 15 bytes, no space, / or :")]


ProxyName = Annotated[
    str,
    text_that(
        lambda text: is_name(text) and text[0].isalpha() and text not in _NO_NAMES,
        "up to 32 of a-z, 0-9, - and _, a letter first; no word such as yes, no or null",
    ),
]


Namespace = Annotated[Container | Path, parsed_by(parse_namespace)] | None


class ProxySection(Section):
    """The interface or interfaces, and the TCP ports, on which clients reach the proxy, and their network namespace.

    Either `interface` or `interfaces` is given: `load_config` makes a `Proxy` of both.
    """

    interface: InterfaceName | None = None
    interfaces: Annotated[
        tuple[InterfaceName, ...], list_of("interfaces", MAX_INTERFACES), AfterValidator(each_once)
    ] = ()
    ports: Annotated[
        tuple[Annotated[range, parsed_by(parse_range)], ...],
        list_of("ports and ranges", MAX_PORT_ITEMS),
        AfterValidator(_disjoint),
    ]
    namespace: Namespace = None


_NO_PROXY: Final = ProxySection.model_construct(ports=())
"""In place of `proxy` where it is not given."""


class SnifferSection(Section):
    """The sniffer's sources, and its bounds: table entries, ends in the history, bytes of the capture buffer.

    `kernel_list_interval` and `idle_expiry` are in seconds.
    """

    trust: Annotated[Trust, one_of(Trust)] = Trust.HANDSHAKE
    kernel_view: Flag = True
    kernel_events: Flag = True
    kernel_list_interval: Annotated[float, parsed_by(parse_duration, at_least="500ms")] = 1.0
    idle_expiry: Annotated[float, parsed_by(parse_duration, at_least="1s")] = 86400.0

    max_connections: Annotated[int, whole(1, 10**7)] = 65536
    max_half_open: Annotated[int, whole(1, 10**7)] = 16384
    history: Annotated[int, whole(16, 10**6)] = 32768
    capture_buffer: Annotated[int, parsed_by(parse_size, at_least="64KiB")] = 8 * 2**20

    @property
    def chain_priority(self) -> int:
        """Where in postrouting packets have the addresses by which the sniffer knows their subflows."""
        return BEFORE_NAT if self.kernel_view else AFTER_NAT


class DaemonSection(Section):
    """What the daemon does in the kernel.

    `linger` and `reconcile_interval` are in seconds; `control_group` is a fraction of 1.
    """

    backend: Annotated[BackEnd, one_of(BackEnd)] = BackEnd.TC
    openvswitch_directory: Annotated[str, text_that(os.path.isabs, "an absolute path")] = "/run/openvswitch"
    mark_mask: Annotated[int, parsed_by(_mark_mask)] = 0xFFFF_0000
    classifier: Annotated[ClassifierKind, one_of(ClassifierKind)] = ClassifierKind.AUTO
    linger: DurationText = 5.0
    reconcile_interval: Annotated[float, parsed_by(parse_duration, at_least="500ms")] = 1.0
    other_traffic: RateOrNull = None
    replace_any_qdisc: Flag = False
    pacing: Flag = True
    steering: Flag = True
    prevent_discards: Flag = True
    wait_for_clock: Flag = True
    cgroup: Annotated[str, text_that(os.path.isabs, "an absolute path, or null")] | None = None
    control_group: Annotated[float, parsed_by(_control_group)] | None = None


class MetricsSection(Section):
    """Where the daemon serves its metrics, besides its Unix socket, and whether it names the busiest clients there."""

    listen: Listen | None = ListenAddress(ip_address("127.0.0.1"), 9721)
    clients: Flag = False


class WebSection(Section):
    """Where mptcp-throttle-web serves its page, besides its Unix socket, and what a log-in permits.

    `names` are host names by which browsers may ask for it. `certificate` and `key` are files in PEM.
    """

    listen: Listen | None = ListenAddress(ip_address("127.0.0.1"), 9722)
    names: Annotated[
        tuple[Annotated[str, text_that(_HOST_NAME.fullmatch, "a host name")], ...], list_of("names", 16, least=0)
    ] = ()
    password_hash: Annotated[PasswordHash, parsed_by(PasswordHash.parse)] | None = None
    control: Flag = False
    certificate: Annotated[str, text_that(os.path.isabs, "an absolute path, or null")] | None = None
    key: Annotated[str, text_that(os.path.isabs, "an absolute path, or null")] | None = None


class ServiceFile(Section):
    """mptcp-throttle.yaml: `load_config` makes `Proxies` of `proxy` or `proxies`, of which one is given."""

    proxy: ProxySection = _NO_PROXY
    proxies: Annotated[dict[ProxyName, ProxySection], mapping_of("proxies", MAX_PROXIES)] = Field(default_factory=dict)
    sniffer: SnifferSection = SnifferSection()
    daemon: DaemonSection = DaemonSection()
    metrics: MetricsSection = MetricsSection()
    web: WebSection = WebSection()
    fleet: FleetSection = FleetSection()
    log_level: Annotated[LogLevel, one_of(LogLevel)] = LogLevel.INFO
    time_zone: Annotated[ZoneInfo, parsed_by(_time_zone)] | None = None
    run_directory: RunDirectory = _RUN_DIRECTORY
    state_directory: Annotated[str, text_that(os.path.isabs, "an absolute path")] = "/var/lib/mptcp-throttle"
    socket_group: Annotated[str, text_that(bool, "the name of a group, or null")] | None = "mptcp-throttle"
    networks_directory: Annotated[str, text_that(bool, "a path")] = NETWORKS_DIRECTORY
    clients_directory: Annotated[str, text_that(bool, "a path")] = CLIENTS_DIRECTORY


class RunDirectoryFile(Section):
    """Only the run directory of mptcp-throttle.yaml."""

    model_config = ConfigDict(extra="ignore")

    run_directory: RunDirectory = _RUN_DIRECTORY


class FleetFile(Section):
    """Only the fleet of mptcp-throttle.yaml."""

    model_config = ConfigDict(extra="ignore")

    fleet: FleetSection = FleetSection()


class NamespaceSection(Section):
    """Only the network namespace of a proxy."""

    model_config = ConfigDict(extra="ignore")

    namespace: Namespace = None


class NamespaceFile(Section):
    """Only the network namespaces of the proxies in mptcp-throttle.yaml."""

    model_config = ConfigDict(extra="ignore")

    proxy: NamespaceSection = NamespaceSection()
    proxies: dict[str, NamespaceSection] = Field(default_factory=dict)


class ClientPrefixSection(Section):
    """How many leading bits the addresses of one client have in common."""

    ipv4: Annotated[int, whole(8, 32)] = 32
    ipv6: Annotated[int, whole(32, 128)] = 64


class UplinkSection(Section):
    """The rates from the clients."""

    cap: RateOrNull = None
    limit: RateOrNull = None


class RatesSection(Section):
    """The rates of an access network."""

    cap: RateOrNull = None
    limit: RateOrNull = None
    uplink: UplinkSection = UplinkSection()

    @property
    def rates(self) -> dict[RateKind, Rate]:
        """The configured rates."""
        values = self.cap, self.limit, self.uplink.cap, self.uplink.limit
        return {kind: rate for kind, rate in zip(RATE_KEYS, values, strict=True) if rate is not None}


ReplacingRate = Annotated[Rate | None, parsed_by(_replacing_rate, or_null=True)] | None


class ReplacingUplinkSection(Section):
    """The rates from the clients in place of others."""

    cap: ReplacingRate = None
    limit: ReplacingRate = None


class ReplacingRatesSection(Section):
    """Rates in place of those of an access network: one that is absent stays as it is; null is unlimited."""

    cap: ReplacingRate = None
    limit: ReplacingRate = None
    uplink: ReplacingUplinkSection = ReplacingUplinkSection()

    @property
    def rates(self) -> dict[RateKind, Rate | None]:
        """Those that it has."""
        sections = {Direction.DOWNLINK: self, Direction.UPLINK: self.uplink}
        keys = ((kind, sections[kind.direction], key[-1]) for kind, key in RATE_KEYS.items())
        return {kind: getattr(section, key) for kind, section, key in keys if key in section.model_fields_set}


class WindowSection(ReplacingRatesSection):
    """A window of a schedule."""

    when: Annotated[When, parsed_by(When.parse)]
    counts: Flag = True

    @property
    def window(self) -> Window:
        """When it holds, and the rates that it has."""
        return Window(self.when, self.rates, self.counts)


StageRate = Annotated[Rate, parsed_by(Rate.parse)] | None


class StageUplinkSection(UplinkSection):
    """The rates from the clients that a budget allows; null, which changes no rate, is not proposed."""

    cap: StageRate = None
    limit: StageRate = None


class StageSection(RatesSection):
    """The rates that a budget allows once a part of it is used; null changes no rate, and is not proposed."""

    cap: StageRate = None
    limit: StageRate = None
    uplink: StageUplinkSection = StageUplinkSection()
    at: Annotated[float, parsed_by(parse_share, at_least="1%")] = 1.0

    @property
    def stage(self) -> Stage:
        """The used fraction, and the rates from then on."""
        return Stage(self.at, self.rates)


class PeriodSection(Section):
    """A budget, whoever it is for; `then` is the only stage, or all of them."""

    amount: Annotated[int, parsed_by(parse_volume)]
    direction: Annotated[Counting, one_of(Counting)] = Counting.BOTH
    every: Annotated[Every, one_of(Every)] = Every.MONTH
    starts: Annotated[int | str, PlainValidator(_start)] | None = None
    warn_at: Annotated[float, parsed_by(parse_share, at_least="1%", or_null=True)] | None = 0.8
    rollover: Flag = False
    rolling: Flag = False
    then: Annotated[tuple[StageSection, ...], BeforeValidator(_stages)]

    def budget_of(self, per: Per, networks: Iterable[str] = ()) -> Budget:
        """The budget. What only together is wrong with its keys is found by `load_config`."""
        starts = self.starts if isinstance(self.starts, int) else WEEKDAYS.index(self.starts or WEEKDAYS[0])
        starts = 1 if self.every is Every.MONTH and self.starts is None else starts
        stages, kept = tuple(section.stage for section in self.then), (self.rollover, self.rolling)
        return Budget(
            self.amount, per, self.direction, self.every, starts, self.warn_at, stages, *kept, tuple(networks)
        )


class BudgetSection(PeriodSection):
    """A budget of an access network."""

    per: Annotated[Per, PlainValidator(_budget_per)] = Per.CLIENT

    @property
    def budget(self) -> Budget:
        """The budget."""
        return self.budget_of(self.per)


class DeviceBudgetSection(PeriodSection):
    """A budget of a device; without `networks`, it is for all in which the device has addresses."""

    networks: (
        Annotated[tuple[str, ...], list_of("access networks", MAX_DEVICE_NETWORKS), AfterValidator(each_once)] | None
    ) = None


class HealthSection(Section):
    """The bounds within which a path of an access network is healthy."""

    rtt: Annotated[float, parsed_by(parse_duration, at_least="1ms", or_null=True)] | None = None
    loss: Annotated[float, parsed_by(parse_share, at_least="0.1%", or_null=True)] | None = None
    rate: RateOrNull = None


Burst = Annotated[int, parsed_by(parse_burst, or_null=True)] | None


class NetworkFile(RatesSection):
    """A file in networks.d."""

    name: Name
    subnets: Annotated[tuple[Annotated[Network, parsed_by(parse_subnet)], ...], list_of("subnets", 1000)] = ()
    subnets_file: Annotated[str, text_that(bool, "a path, or null")] | None = None
    preference: Annotated[int, whole(1, 1000)]
    per: Annotated[Per, one_of(Per)] = Per.CLIENT
    client_prefix: ClientPrefixSection = ClientPrefixSection()
    provisional: Annotated[float, parsed_by(parse_duration, or_null=True)] | None = None
    healthy: HealthSection = HealthSection()
    schedule: Annotated[tuple[WindowSection, ...], list_of("windows", _MAX_WINDOWS, least=0)] = ()
    budgets: Annotated[tuple[BudgetSection, ...], list_of("budgets", _MAX_BUDGETS, least=0)] = ()
    overflow: RateOrNull = None
    burst: Burst = None
    shared: Flag = False
    proxy: Annotated[str, text_that(is_name, "the name of a proxy in mptcp-throttle.yaml, or null")] | None = None

    def with_subnets(self, subnets: Iterable[Network]) -> AccessNetwork:
        """The access network that it configures, with all its subnets, those of `subnets_file` too."""
        return AccessNetwork(
            self.name,
            tuple(subnets),
            self.preference,
            self.rates,
            self.per,
            self.provisional or 0.0,
            ClientPrefix(self.client_prefix.ipv4, self.client_prefix.ipv6),
            Health(self.healthy.rtt, self.healthy.loss, self.healthy.rate),
            tuple(section.window for section in self.schedule),
            self.proxy,
            tuple(section.budget for section in self.budgets),
            self.overflow,
            self.burst or 0,
            self.shared,
        )


class DeviceNetworkSection(ReplacingRatesSection):
    """A device in one access network."""

    addresses: Annotated[tuple[Annotated[Network, parsed_by(parse_prefix)], ...], list_of("addresses", _MAX_ADDRESSES)]


class DeviceFile(Section):
    """A file in clients.d."""

    name: Name
    networks: Annotated[dict[str, DeviceNetworkSection], mapping_of("access networks", MAX_DEVICE_NETWORKS)]
    budgets: Annotated[tuple[DeviceBudgetSection, ...], list_of("budgets", _MAX_BUDGETS, least=0)] = ()

    @property
    def device(self) -> Device:
        """The device that it configures."""
        return Device(
            self.name,
            {name: section.addresses for name, section in self.networks.items()},
            {name: rates for name, section in self.networks.items() if (rates := section.rates)},
            tuple(section.budget_of(Per.CLIENT, section.networks or self.networks) for section in self.budgets),
        )


@dataclass(frozen=True, slots=True)
class SocketGroup:
    """The group that may use the sockets. It is looked up only when used; `where` is FILE:LINE of its name."""

    name: str
    where: str

    @property
    def gid(self) -> int:
        """The group id. Raises ConfigError if there is no such group on this host."""
        try:
            return grp.getgrnam(self.name).gr_gid
        except KeyError as error:
            problem = (
                f"{self.where}: socket_group: {shown(self.name)}: no such group; allowed: one of this host, or null"
            )
            raise ConfigError([problem]) from error


@dataclass(frozen=True, slots=True)
class Sockets:
    """The Unix sockets of the services."""

    sniffer: Path
    daemon: Path
    metrics: Path
    web: Path

    @classmethod
    def below(cls, run_directory: Path) -> Self:
        """The sockets in this run directory."""
        names = _SNIFFER_SOCKET, _DAEMON_SOCKET, _METRICS_SOCKET, _WEB_SOCKET
        return cls(*(run_directory / name for name in names))


@dataclass(frozen=True, slots=True)
class Config:
    """A valid configuration. Networks are ordered by preference, then name; devices by name.

    `policy` is where they are from; None: from files beside that of the services. `policy_problem` is why that is not
    the one that was adopted last, if so.
    """

    proxies: Proxies
    sniffer: SnifferSection
    daemon: DaemonSection
    metrics: MetricsSection
    web: WebSection
    fleet: FleetSection
    log_level: LogLevel
    time_zone: ZoneInfo | None
    run_directory: Path
    state_directory: Path
    socket_group: SocketGroup | None
    networks: tuple[AccessNetwork, ...]
    devices: tuple[Device, ...] = ()
    policy: KeptPolicy | None = None
    policy_problem: str | None = None

    @property
    def proxy(self) -> Proxy:
        """Where clients reach any of the proxies."""
        return self.proxies.together

    @property
    def sockets(self) -> Sockets:
        """The Unix sockets of the services."""
        return Sockets.below(self.run_directory)

    def network(self, name: str) -> AccessNetwork | None:
        """The access network of that name, None if there is none."""
        return next((network for network in self.networks if network.name == name), None)
