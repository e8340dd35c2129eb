"""Configuration: YAML files in, one frozen `Config` out, or a `ConfigError` and nothing applied.

`mptcp-throttle.yaml` describes the service, one file per access network in `networks.d/` describes the networks.
The whole set is validated together; `mptcp-throttle check-config` and both services share this loader.
"""

from __future__ import annotations

import grp
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Network, ip_network
from itertools import combinations
from pathlib import Path
from typing import Annotated, Final, TypeVar

from pydantic import AfterValidator, ConfigDict

from mptcp_throttle.errors import ConfigError, shown
from mptcp_throttle.model import AccessNetwork, MarkBackEnd, Network, Per, Trust
from mptcp_throttle.units import parse_duration, parse_size
from mptcp_throttle.validation import (
    DurationText,
    Flag,
    Name,
    RateText,
    Section,
    each_once,
    is_text,
    list_of,
    one_of,
    parsed_by,
    text_that,
    validate,
    whole,
)
from mptcp_throttle.yaml_file import YamlFile, dotted, read_yaml

DEFAULT_PATH: Final = Path("/etc/mptcp-throttle/mptcp-throttle.yaml")

_NETWORKS_DIRECTORY: Final = "networks.d"
_RUN_DIRECTORY: Final = "/run/mptcp-throttle"
_SNIFFER_SOCKET: Final = "sniffer.sock"
_DAEMON_SOCKET: Final = "daemon.sock"
# sun_path holds 108 bytes (include/uapi/linux/un.h), of which Python wants the last for a zero.
_MAX_RUN_DIRECTORY: Final = 107 - len(f"/{_SNIFFER_SOCKET}")
_IPV4_MAPPED: Final = IPv6Network("::ffff:0:0/96")

_T = TypeVar("_T")


def _subnet(text: str) -> Network:
    try:
        subnet = ip_network(text)
    except ValueError as error:
        raise ValueError(f"is not a subnet ({error}); allowed: 10.1.0.0/24 or fd00:1::/64, no host bits set") from error
    if isinstance(subnet, IPv6Network) and subnet.subnet_of(_IPV4_MAPPED):
        written = f"{subnet.network_address.ipv4_mapped}/{subnet.prefixlen - _IPV4_MAPPED.prefixlen}"
        raise ValueError(f"is IPv4-mapped, which no packet is; allowed: {written}")
    return subnet


def _holds_sockets(text: str) -> bool:
    return os.path.isabs(text) and len(os.fsencode(Path(text))) <= _MAX_RUN_DIRECTORY


def _is_interface(text: str) -> bool:
    # dev_valid_name() in net/core/dev.c, where isspace() knows Latin-1; IFNAMSIZ is 16 with the terminating zero.
    return text not in {".", ".."} and re.fullmatch(rb"[^/:\s\xa0]{1,15}", text.encode()) is not None


def _mark_mask(text: str) -> int:
    try:
        mask = int(text, 0)
    except ValueError as error:
        raise ValueError("is not a number; allowed: a mask such as 0xffff0000") from error
    lowest = mask & -mask
    if not 0 < mask < 2**32 or (mask + lowest) & mask or mask // lowest < 0xFF or mask // lowest > 0xFFFF:
        raise ValueError("allowed: 8 to 16 adjacent bits of 32, such as 0xffff0000")
    return mask


RunDirectory = Annotated[
    str, text_that(_holds_sockets, f"an absolute path of up to {_MAX_RUN_DIRECTORY} bytes: it holds sockets")
]


class ProxySection(Section):
    """Where the proxy is reached: interface and TCP ports."""

    interface: Annotated[str, text_that(_is_interface, "the name of an interface: up to 15 bytes, no space, / or :")]
    ports: Annotated[tuple[Annotated[int, whole(1, 65535)], ...], list_of("ports", 16), AfterValidator(each_once)]


class SnifferSection(Section):
    """What the sniffer believes, and its bounds: entries in its tables, changes in its history, bytes of buffer.

    `audit_interval` and `idle_expiry` are in seconds.
    """

    trust: Annotated[Trust, one_of(Trust)] = Trust.HANDSHAKE
    kernel_view: Flag = True
    kernel_events: Flag = False
    audit_interval: Annotated[float, parsed_by(parse_duration, at_least="500ms")] = 1.0
    idle_expiry: Annotated[float, parsed_by(parse_duration, at_least="1s")] = 86400.0

    max_connections: Annotated[int, whole(1, 10**7)] = 65536
    max_half_open: Annotated[int, whole(1, 10**7)] = 16384
    history: Annotated[int, whole(16, 10**6)] = 4096
    capture_buffer: Annotated[int, parsed_by(parse_size, at_least="64KiB")] = 8 * 2**20


class DaemonSection(Section):
    """How the daemon treats the kernel: marks, hysteresis and audit period in seconds, the other traffic."""

    mark_mask: Annotated[int, parsed_by(_mark_mask)] = 0xFFFF_0000
    marks: Annotated[MarkBackEnd, one_of(MarkBackEnd)] = MarkBackEnd.AUTO
    linger: DurationText = 5.0
    audit_interval: Annotated[float, parsed_by(parse_duration, at_least="500ms")] = 1.0
    other_traffic: RateText | None = None
    replace_any_qdisc: Flag = False
    pacing: Flag = True
    cgroup: Annotated[str, text_that(os.path.isabs, "an absolute path, or null")] | None = None


class _ServiceFile(Section):
    proxy: ProxySection
    sniffer: SnifferSection = SnifferSection()
    daemon: DaemonSection = DaemonSection()
    run_directory: RunDirectory = _RUN_DIRECTORY
    state_directory: Annotated[str, text_that(os.path.isabs, "an absolute path")] = "/var/lib/mptcp-throttle"
    socket_group: Annotated[str, text_that(bool, "the name of a group, or null")] | None = "mptcp-throttle"
    networks_directory: Annotated[str, text_that(bool, "a path")] = _NETWORKS_DIRECTORY


class _Whereabouts(Section):
    model_config = ConfigDict(extra="ignore")

    run_directory: RunDirectory = _RUN_DIRECTORY


class _NetworkFile(Section):
    name: Name
    subnets: Annotated[tuple[Annotated[Network, parsed_by(_subnet)], ...], list_of("subnets", 1000)]
    preference: Annotated[int, whole(1, 1000)]
    cap: RateText | None = None
    limit: RateText | None = None
    per: Annotated[Per, one_of(Per)] = Per.CLIENT


@dataclass(frozen=True, slots=True)
class SocketGroup:
    """A group that may use the sockets. It need not exist before a service starts; `where` is FILE:LINE of its name."""

    name: str
    where: str

    @property
    def gid(self) -> int:
        """Its number. Raises ConfigError if this host has no such group."""
        try:
            return grp.getgrnam(self.name).gr_gid
        except KeyError as error:
            problem = (
                f"{self.where}: socket_group: {shown(self.name)}: no such group; allowed: one of this host, or null"
            )
            raise ConfigError([problem]) from error


@dataclass(frozen=True, slots=True)
class Sockets:
    """The Unix sockets on which the services answer."""

    sniffer: Path
    daemon: Path


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration that validated as a whole. Networks are ordered by preference, then name."""

    proxy: ProxySection
    sniffer: SnifferSection
    daemon: DaemonSection
    run_directory: Path
    state_directory: Path
    socket_group: SocketGroup | None
    networks: tuple[AccessNetwork, ...]

    @property
    def sockets(self) -> Sockets:
        """Where the services answer."""
        return _sockets(self.run_directory)

    def network(self, name: str) -> AccessNetwork | None:
        """The access network of that name."""
        return next((network for network in self.networks if network.name == name), None)


def load_config(path: Path) -> Config:
    """Read `path` and the network files beside it.

    Raises ConfigError with all problems found, one line each.
    """
    service_file = read_yaml(path)
    problems: list[str] = []
    service = _attempt(problems, validate, _ServiceFile, service_file)
    networks = _attempt(problems, _networks, service_file)
    if service is None or networks is None:
        raise ConfigError(problems)
    group = service.socket_group
    return Config(
        proxy=service.proxy,
        sniffer=service.sniffer,
        daemon=service.daemon,
        run_directory=Path(service.run_directory),
        state_directory=Path(service.state_directory),
        socket_group=None if group is None else SocketGroup(group, service_file.where(("socket_group",))),
        networks=networks,
    )


def find_sockets(path: Path) -> Sockets:
    """Where the services answer according to `path`, whatever else is wrong with it or with the network files.

    Raises ConfigError if that cannot be told.
    """
    return _sockets(Path(validate(_Whereabouts, read_yaml(path)).run_directory))


def find_run_directory(path: Path) -> Path:
    """The run directory according to `path`, whatever is wrong with it; the usual one if that cannot be told."""
    try:
        return find_sockets(path).daemon.parent
    except ConfigError:
        return Path(_Whereabouts().run_directory)


def _sockets(run_directory: Path) -> Sockets:
    return Sockets(run_directory / _SNIFFER_SOCKET, run_directory / _DAEMON_SOCKET)


def _attempt(problems: list[str], load: Callable[..., _T], *arguments: object) -> _T | None:
    try:
        return load(*arguments)
    except ConfigError as error:
        problems += error.problems
        return None


def _networks(service_file: YamlFile) -> tuple[AccessNetwork, ...]:
    name = service_file.data.get("networks_directory", _NETWORKS_DIRECTORY)
    if not is_text(name):
        raise ConfigError([])  # _ServiceFile has the line about it
    directory = service_file.path.parent / name
    prefix = f"{service_file.where(('networks_directory',))}: networks_directory: {directory}:"
    try:
        paths = sorted(entry for entry in directory.iterdir() if entry.suffix in {".yaml", ".yml"})
    except OSError as error:
        raise ConfigError([f"{prefix} cannot be read: {error.strerror}"]) from error
    if not paths:
        raise ConfigError([f"{prefix} has no access network; allowed: one NAME.yaml per access network"])
    problems: list[str] = []
    read = [_attempt(problems, _network, path) for path in paths]
    networks = [item for item in read if item is not None]
    if not problems:
        problems += _idle_caps(networks)
    problems += _conflicts(networks)
    if problems:
        raise ConfigError(problems)
    return tuple(sorted((network for _, network in networks), key=lambda n: (n.preference, n.name)))


def _network(path: Path) -> tuple[YamlFile, AccessNetwork]:
    file = read_yaml(path)
    raw = validate(_NetworkFile, file)
    if raw.cap is not None and raw.limit is not None and raw.cap > raw.limit:
        raise ConfigError([f"{file.where(('cap',))}: cap: {raw.cap}: is more than limit; allowed: up to {raw.limit}"])
    return file, AccessNetwork(raw.name, raw.subnets, raw.preference, raw.cap, raw.limit, raw.per)


def _idle_caps(networks: list[tuple[YamlFile, AccessNetwork]]) -> list[str]:
    most_preferred = min(network.preference for _, network in networks)
    problem = "never applies on a most preferred network; allowed: null, or limit instead"
    return [
        f"{file.where(('cap',))}: cap: {network.cap}: {problem}"
        for file, network in networks
        if network.cap is not None and network.preference == most_preferred
    ]


def _conflicts(networks: list[tuple[YamlFile, AccessNetwork]]) -> list[str]:
    problems = []
    names: dict[str, YamlFile] = {}
    for file, network in networks:
        if network.name in names:
            problems.append(
                f"{file.where(('name',))}: name: {network.name}: is taken by {names[network.name].path};"
                " allowed: a name of its own for every network"
            )
        names.setdefault(network.name, file)
    subnets = [(subnet, file, index) for file, network in networks for index, subnet in enumerate(network.subnets)]
    for (first, first_file, first_index), (second, file, index) in combinations(subnets, 2):
        if first.version == second.version and first.overlaps(second):
            problems.append(
                f"{file.where(('subnets', index))}: {dotted(('subnets', index))}: {second}: overlaps {first} of"
                f" {first_file.where(('subnets', first_index))}; allowed: subnets that have no address in common"
            )
    return problems
