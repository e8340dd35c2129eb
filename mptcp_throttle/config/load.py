"""Loads the configuration: YAML files to one frozen `Config`, or a `ConfigError` with all problems.

`mptcp-throttle.yaml` configures the services, each file in `networks.d/` an access network, and each in `clients.d/` a
device. Both services and `mptcp-throttle check-config` validate them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from mptcp_throttle.config.device_files import load_devices, with_devices
from mptcp_throttle.config.fleet_section import FleetSection, fleet_problems
from mptcp_throttle.config.network_files import load_networks, subnets_path
from mptcp_throttle.config.schema import (
    CLIENTS_DIRECTORY,
    NETWORKS_DIRECTORY,
    Config,
    FleetFile,
    NamespaceFile,
    RunDirectoryFile,
    ServiceFile,
    SocketGroup,
    Sockets,
)
from mptcp_throttle.config.service_checks import interface_names, service_problems, unequal_namespaces
from mptcp_throttle.config.validation import attempt, is_text, validate
from mptcp_throttle.config.yaml_file import YamlFile, read_yaml
from mptcp_throttle.errors import ConfigError
from mptcp_throttle.network_namespace import Container
from mptcp_throttle.policy_bundle.kept_policy import (
    KeptPolicy,
    PolicyDirectory,
    in_policy,
    number_of,
    read_kept,
    require_as_signed,
)
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import Proxies, Proxy

DEFAULT_PATH: Final = Path("/etc/mptcp-throttle/mptcp-throttle.yaml")


def load_config(path: Path, network_files: Sequence[Path] | None = None) -> Config:
    """The configuration of `path`, with the networks and devices of the policy in use, or local ones.

    With `network_files` the local ones, and the networks of these files. In place of a policy that cannot be used are
    those of the one before, or else local ones. Raises ConfigError with all problems found, one line each.
    """
    files = _Files.read(path)
    return files.config(None, network_files) if network_files is not None else files.first_usable([*files.kept(), None])


def load_again(path: Path, policy: KeptPolicy | None) -> Config:
    """The same for a daemon that runs with this policy, or None with local files.

    It does not go back to an older policy, or to local files, for one that cannot be used. Raises ConfigError.
    """
    files = _Files.read(path)
    kept = files.kept()
    if not kept or policy is None or policy.fleet != files.fleet:
        return files.first_usable([*kept, None])
    newer = (directory for directory in kept[1:] if number_of(directory) >= policy.version.number)
    return files.first_usable([kept[0], *newer])


def load_with_policy(path: Path, policy: KeptPolicy | None) -> Config:
    """The same with the networks and devices of this policy; None: with the local ones. Raises ConfigError."""
    return _Files.read(path).config(policy)


@dataclass(frozen=True, slots=True)
class _Files:
    """The file of the services with its problems; `service` is None if it is not valid by itself."""

    service_file: YamlFile
    service: ServiceFile | None
    problems: Sequence[str]

    @classmethod
    def read(cls, path: Path) -> Self:
        service_file, problems = read_yaml(path), list[str]()
        service = attempt(problems, validate, ServiceFile, service_file)
        if service is not None:
            problems += service_problems(service, service_file)
        return cls(service_file, service, tuple(problems))

    @property
    def fleet(self) -> str | None:
        """The fleet whose policies are adopted."""
        return None if self.service is None else self.service.fleet.policy.fleet

    def kept(self) -> list[Path]:
        """The directories of the policies of the fleet that were adopted, the current one first."""
        if self.service is None or self.fleet is None:
            return []
        return PolicyDirectory(Path(self.service.state_directory)).kept(self.fleet)

    def first_usable(self, directories: Sequence[Path | None]) -> Config:
        """With the first of the policies in these directories that can be used; None: with the local files."""
        if self.problems and directories[0] is not None:
            raise ConfigError([*self.problems])  # no policy is to blame
        problems: list[str] = []
        reason = None
        for directory in directories:
            try:
                config = self.config(None if directory is None else read_kept(directory, str(self.fleet)))
            except ConfigError as error:
                problems += error.problems
                if directory is not None:
                    reason = reason or in_policy(directory, error.problems)
                continue
            instead = "local files are" if config.policy is None else f"policy {config.policy} is"
            return config if reason is None else replace(config, policy_problem=f"{reason}; {instead} used instead")
        raise ConfigError(problems)

    def config(self, policy: KeptPolicy | None, network_files: Sequence[Path] | None = None) -> Config:
        """With this policy, or None with local files. Raises ConfigError with all problems found."""
        service_file, service, problems = self.service_file, self.service, [*self.problems]
        files = attempt(
            problems, lambda: _network_files(service_file, policy) if network_files is None else network_files
        )
        networks = None if files is None else attempt(problems, load_networks, files, service_file.path, service)
        loaded = attempt(problems, lambda: load_devices(_device_files(service_file, policy)))
        if policy is not None:
            attempt(problems, require_as_signed, policy)
        if problems or service is None or networks is None or loaded is None:
            raise ConfigError(problems)
        proxies = Proxies(_by_name(service))
        networks, devices = with_devices(networks, loaded, proxies, kernel_view=service.sniffer.kernel_view)
        group = service.socket_group
        return Config(
            proxies=proxies,
            sniffer=service.sniffer,
            daemon=service.daemon,
            metrics=service.metrics,
            web=service.web,
            fleet=service.fleet,
            log_level=service.log_level,
            time_zone=service.time_zone,
            run_directory=Path(service.run_directory),
            state_directory=Path(service.state_directory),
            socket_group=None if group is None else SocketGroup(group, service_file.where(("socket_group",))),
            networks=networks,
            devices=devices,
            policy=policy,
        )


def config_paths(path: Path) -> tuple[Path, ...]:
    """What `load_config` reads: `path`, the network files, files of subnets, the devices, and their directories.

    Raises ConfigError.
    """
    service_file = read_yaml(path)
    fleet = validate(ServiceFile, service_file).fleet.policy.fleet
    policy = None if fleet is None else load_config(path).policy
    files, devices = _network_files(service_file, policy), _device_files(service_file, policy)
    subnets_files = filter(None, (subnets_path(read_yaml(file)) for file in files))
    directories = (each[0].parent for each in (files, devices) if each)
    return path, *directories, *files, *subnets_files, *devices


def local_files(path: Path) -> tuple[list[Path], list[Path]]:
    """The files of access networks, and those of devices, that are beside `path`. Raises ConfigError."""
    service_file = read_yaml(path)
    return _network_files(service_file, None), _device_files(service_file, None)


def find_sockets(path: Path) -> Sockets:
    """The sockets according to `path`, whatever else is wrong with it or with the network files.

    Raises ConfigError if the run directory cannot be read from it.
    """
    return Sockets.below(Path(validate(RunDirectoryFile, read_yaml(path)).run_directory))


def find_daemon_directory(path: Path) -> Path:
    """The daemon's part of the run directory according to `path`, or of the default one if `path` does not say it."""
    try:
        return find_sockets(path).daemon.parent
    except ConfigError:
        return Sockets.below(Path(RunDirectoryFile().run_directory)).daemon.parent


def find_fleet(path: Path) -> FleetSection:
    """The fleet according to `path`, whatever else is wrong with it or with network files. Raises ConfigError."""
    file = read_yaml(path)
    fleet = validate(FleetFile, file).fleet
    problems = [*fleet_problems(fleet, file, kernel_view=True)]
    if problems:
        raise ConfigError(problems)
    return fleet


def find_namespace(path: Path) -> Container | Path | None:
    """The network namespace of the proxies according to `path`, whatever else is wrong with it or with network files.

    Raises ConfigError if it cannot be read from it, or if it is not the same for all.
    """
    file = read_yaml(path)
    sections = validate(NamespaceFile, file)
    by_name = {name: proxy.namespace for name, proxy in sections.proxies.items()}
    problems = [*unequal_namespaces(by_name, file)]
    if problems:
        raise ConfigError(problems)
    return next(iter(by_name.values()), sections.proxy.namespace)


def _by_name(service: ServiceFile) -> dict[str | None, Proxy]:
    # Their order in the file means nothing.
    sections = sorted(service.proxies.items()) if service.proxies else [(None, service.proxy)]
    return {name: Proxy(interface_names(proxy), Ports(proxy.ports), proxy.namespace) for name, proxy in sections}


def yaml_files_in(directory: Path) -> list[Path]:
    """The files of access networks or devices in a directory, in any order, without hidden files. Raises OSError."""
    entries = (entry for entry in directory.iterdir() if not entry.name.startswith("."))
    return [entry for entry in entries if entry.suffix in {".yaml", ".yml"}]


def _network_files(service_file: YamlFile, policy: KeptPolicy | None) -> list[Path]:
    name = service_file.data.get("networks_directory", NETWORKS_DIRECTORY)
    if not is_text(name):
        raise ConfigError([])  # the validation of ServiceFile reports it
    directory = service_file.path.parent / name if policy is None else policy.networks
    prefix = f"{directory}:" if policy is not None else f"{service_file.place('networks_directory')}: {directory}:"
    try:
        paths = sorted(yaml_files_in(directory))
    except OSError as error:
        raise ConfigError([f"{prefix} cannot be read: {error.strerror}"]) from error
    if not paths:
        raise ConfigError([f"{prefix} has no access network; allowed: one NAME.yaml per access network"])
    return paths


def _device_files(service_file: YamlFile, policy: KeptPolicy | None) -> list[Path]:
    """The files of the devices; none if there is no such directory."""
    name = service_file.data.get("clients_directory", CLIENTS_DIRECTORY)
    if not is_text(name):
        return []  # the validation of ServiceFile reports it
    directory = service_file.path.parent / name if policy is None else policy.clients
    try:
        return sorted(yaml_files_in(directory))
    except FileNotFoundError:
        return []
    except OSError as error:
        prefix = f"{service_file.place('clients_directory')}: {directory}:"
        raise ConfigError([f"{prefix} cannot be read: {error.strerror}"]) from error
