"""Configuration: YAML files in, one frozen `Config` out, or a `ConfigError` and nothing applied.

`mptcp-throttle.yaml` describes the service, one file per access network in `networks.d/` describes the networks.
The whole set is validated together; `mptcp-throttle check-config` and both services share this loader.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_network
from itertools import combinations
from pathlib import Path
from typing import Annotated, Final, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import ErrorDetails

from mptcp_throttle.errors import ConfigError
from mptcp_throttle.model import AccessNetwork, Network, Per, Trust
from mptcp_throttle.units import Rate, parse_duration, parse_size
from mptcp_throttle.yaml_file import YamlFile, dotted, read_yaml

DEFAULT_PATH: Final = Path("/etc/mptcp-throttle/mptcp-throttle.yaml")

_T = TypeVar("_T")
_Choice = TypeVar("_Choice", bound=StrEnum)


def _parsed_by(parse: Callable[[str], _T], *, at_least: _T | None = None) -> PlainValidator:
    def validate(value: object) -> _T:
        result = parse(str(value))
        if at_least is not None and result < at_least:  # type: ignore[operator]
            raise ValueError(f"is too small; allowed: {at_least} or more")
        return result

    return PlainValidator(validate)


def _subnet(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(f"is not a subnet ({error}); allowed: 10.1.0.0/24 or fd00:1::/64, no host bits set") from error


def _one_of(choices: type[_Choice]) -> PlainValidator:
    def parse(text: str) -> _Choice:
        try:
            return choices(text)
        except ValueError as error:
            raise ValueError(f"allowed: {', '.join(choices)}") from error

    return _parsed_by(parse)


def _mark_mask(text: str) -> int:
    try:
        mask = int(text, 0)
    except ValueError as error:
        raise ValueError("is not a number; allowed: a mask such as 0xffff0000") from error
    lowest = mask & -mask
    if not 0 < mask < 2**32 or (mask + lowest) & mask or mask // lowest < 0xFF or mask // lowest > 0xFFFF:
        raise ValueError("allowed: 8 to 16 adjacent bits of 32, such as 0xffff0000")
    return mask


RateText = Annotated[Rate, _parsed_by(Rate.parse)]
DurationText = Annotated[float, _parsed_by(parse_duration)]
PortNumber = Annotated[int, Field(ge=1, le=65535)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ProxySection(_Section):
    """Where the proxy is reached: interface and TCP ports."""

    # IFNAMSIZ is 16 with the terminating zero (include/uapi/linux/if.h).
    interface: str = Field(min_length=1, max_length=15)
    ports: tuple[PortNumber, ...] = Field(min_length=1, max_length=16, strict=False)


class SnifferSection(_Section):
    """What the sniffer believes, and its bounds: entries in its tables, changes in its history, bytes of buffer.

    `audit_interval` and `idle_expiry` are in seconds.
    """

    trust: Annotated[Trust, _one_of(Trust)] = Trust.HANDSHAKE
    kernel_view: bool = True
    kernel_events: bool = False
    audit_interval: Annotated[float, _parsed_by(parse_duration, at_least=0.5)] = 10.0
    idle_expiry: Annotated[float, _parsed_by(parse_duration, at_least=1)] = 86400.0

    max_connections: int = Field(default=65536, ge=1, le=10**7)
    max_half_open: int = Field(default=16384, ge=1, le=10**7)
    history: int = Field(default=4096, ge=16, le=10**6)
    capture_buffer: Annotated[int, _parsed_by(parse_size, at_least=65536)] = 8 * 2**20


class DaemonSection(_Section):
    """How the daemon treats the kernel: mark bits, hysteresis and audit period in seconds, the other traffic."""

    mark_mask: Annotated[int, _parsed_by(_mark_mask)] = 0xFFFF_0000
    linger: DurationText = 5.0
    audit_interval: Annotated[float, _parsed_by(parse_duration, at_least=0.5)] = 5.0
    other_traffic: RateText | None = None


class _ServiceFile(_Section):
    proxy: ProxySection
    sniffer: SnifferSection = SnifferSection()
    daemon: DaemonSection = DaemonSection()
    run_directory: str = "/run/mptcp-throttle"
    state_directory: str = "/var/lib/mptcp-throttle"
    socket_group: str | None = "mptcp-throttle"
    networks_directory: str = "networks.d"


class _NetworkFile(_Section):
    name: Name
    subnets: tuple[Annotated[Network, _parsed_by(_subnet)], ...] = Field(min_length=1, strict=False)
    preference: int = Field(ge=1, le=1000)
    cap: RateText | None = None
    limit: RateText | None = None
    per: Annotated[Per, _one_of(Per)] = Per.CLIENT


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration that validated as a whole. Networks are ordered by preference, then name."""

    proxy: ProxySection
    sniffer: SnifferSection
    daemon: DaemonSection
    run_directory: Path
    state_directory: Path
    socket_group: str | None
    networks: tuple[AccessNetwork, ...]

    @property
    def sniffer_socket(self) -> Path:
        """The Unix socket on which `mptcp-sniffer` answers."""
        return self.run_directory / "sniffer.sock"

    @property
    def daemon_socket(self) -> Path:
        """The Unix socket on which `mptcp-throttled` answers."""
        return self.run_directory / "daemon.sock"

    def network(self, name: str) -> AccessNetwork | None:
        """The access network of that name."""
        return next((network for network in self.networks if network.name == name), None)


def load_config(path: Path) -> Config:
    """Read `path` and the network files beside it.

    Raises ConfigError with all problems found, one line each.
    """
    service_file = read_yaml(path)
    service = _validate(_ServiceFile, service_file)
    directory = path.parent / service.networks_directory
    try:
        network_paths = sorted(entry for entry in directory.iterdir() if entry.suffix in {".yaml", ".yml"})
    except OSError as error:
        where = service_file.where(("networks_directory",))
        raise ConfigError([f"{where}: networks_directory: {directory}: cannot be read: {error.strerror}"]) from error
    if not network_paths:
        raise ConfigError([f"{directory}: has no access network; allowed: one NAME.yaml per access network"])
    networks, problems = [], []
    for network_path in network_paths:
        try:
            network_file = read_yaml(network_path)
            networks.append((network_file, _network(network_file)))
        except ConfigError as error:
            problems += error.problems
    problems += _conflicts(networks)
    if problems:
        raise ConfigError(problems)
    return Config(
        proxy=service.proxy,
        sniffer=service.sniffer,
        daemon=service.daemon,
        run_directory=Path(service.run_directory),
        state_directory=Path(service.state_directory),
        socket_group=service.socket_group,
        networks=tuple(sorted((network for _, network in networks), key=lambda n: (n.preference, n.name))),
    )


def _network(file: YamlFile) -> AccessNetwork:
    raw = _validate(_NetworkFile, file)
    if raw.cap is not None and raw.limit is not None and raw.cap > raw.limit:
        raise ConfigError([f"{file.where(('cap',))}: cap: {raw.cap}: is more than limit; allowed: up to {raw.limit}"])
    return AccessNetwork(raw.name, raw.subnets, raw.preference, raw.cap, raw.limit, raw.per)


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


_Model = TypeVar("_Model", bound=_Section)


def _validate(model: type[_Model], file: YamlFile) -> _Model:
    try:
        return model.model_validate(file.data)
    except ValidationError as error:
        details = error.errors()
        # A list whose only item is bad is also reported as too short; the bad item is the news.
        faulty = {detail["loc"][:-1] for detail in details}
        details = [d for d in details if d["type"] != "too_short" or d["loc"] not in faulty]
        raise ConfigError([_explain(model, file, detail) for detail in details]) from error


def _explain(model: type[_Section], file: YamlFile, detail: ErrorDetails) -> str:
    keys = tuple(key for key in detail["loc"] if isinstance(key, str | int))
    while keys and keys not in file.lines and detail["type"] != "missing":
        keys = keys[:-1]  # pydantic appends the union member it tried
    prefix = f"{file.where(keys)}: {dotted(keys)}:"
    if detail["type"] == "missing":
        return f"{prefix} is required"
    value = _shortened(detail["input"])
    if detail["type"] == "extra_forbidden":
        return f"{prefix} {value}: unknown key; allowed: {', '.join(_keys_beside(model, keys))}"
    if detail["type"] == "model_type":
        return f"{prefix} {value}: is not a mapping; allowed: lines of the form `option: value`"
    message = re.sub(r"^(Value error, |(Input|String|Tuple) should (be )?)", "allowed: ", detail["msg"])
    return f"{prefix} {value}: {message.removeprefix('allowed: ') if 'error' in detail.get('ctx', {}) else message}"


def _keys_beside(model: type[_Section], keys: tuple[str | int, ...]) -> list[str]:
    for key in keys[:-1]:
        annotation = model.model_fields[str(key)].annotation
        candidates = [annotation, *get_args(annotation)]
        model = next(c for c in candidates if isinstance(c, type) and issubclass(c, _Section))
    return sorted(model.model_fields)


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
