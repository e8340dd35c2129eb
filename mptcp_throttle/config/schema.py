"""What `mptcp-throttle.yaml` may contain, and the frozen `Config` that is made of valid files."""

from __future__ import annotations

import grp
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Self
from zoneinfo import TZPATH, ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, ConfigDict, Field

from mptcp_throttle.config.fleet_section import FleetSection
from mptcp_throttle.config.password_hash import PasswordHash
from mptcp_throttle.config.validation import (
    DurationText,
    Flag,
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
from mptcp_throttle.errors import ConfigError, shown
from mptcp_throttle.model import AccessNetwork, Address, BackEnd, ClassifierKind, Device, Endpoint, LogLevel, Trust
from mptcp_throttle.network_namespace import Container, parse_namespace
from mptcp_throttle.own_chains import AFTER_NAT, BEFORE_NAT
from mptcp_throttle.policy_bundle.kept_policy import KeptPolicy
from mptcp_throttle.ports import parse_range
from mptcp_throttle.proxies import MAX_INTERFACES, MAX_PROXIES, Proxies, Proxy
from mptcp_throttle.units import parse_duration, parse_share, parse_size

NETWORKS_DIRECTORY: Final = "networks.d"
CLIENTS_DIRECTORY: Final = "clients.d"
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
# What the directory of time zones has besides: with leap seconds, and what no zone is named after.
_NO_ZONES: Final = frozenset({"right", "posix", "posixrules", "localtime", "Factory"})
# Words that are no text in YAML 1.1.
_NO_NAMES: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
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
