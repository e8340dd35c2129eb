"""Loads the configuration: YAML files to one frozen `Config`, or a `ConfigError` with all problems.

`mptcp-throttle.yaml` configures the services, each file in `networks.d/` an access network, and each in `clients.d/` a
device. Both services and `mptcp-throttle check-config` validate them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from mptcp_throttle.config.device_files import load_devices, with_devices
from mptcp_throttle.config.schema import (
    CLIENTS_DIRECTORY,
    MAX_PORT_ITEMS,
    NETWORKS_DIRECTORY,
    RATE_KEYS,
    Config,
    NamespaceFile,
    NetworkFile,
    ProxySection,
    RunDirectoryFile,
    ServiceFile,
    SocketGroup,
    Sockets,
)
from mptcp_throttle.config.subnets import read_subnets
from mptcp_throttle.config.validation import is_text, validate
from mptcp_throttle.config.yaml_file import KeyPath, YamlFile, dotted, read_yaml
from mptcp_throttle.errors import ConfigError
from mptcp_throttle.model import (
    AccessNetwork,
    BackEnd,
    ClassifierKind,
    Direction,
    Every,
    Network,
    Per,
    RateKind,
    Stage,
)
from mptcp_throttle.network_namespace import Container
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import MAX_INTERFACES, Proxies, Proxy
from mptcp_throttle.schedule import never_holds
from mptcp_throttle.units import Rate, format_share
from mptcp_throttle.when import WEEKDAYS

DEFAULT_PATH: Final = Path("/etc/mptcp-throttle/mptcp-throttle.yaml")

_MOST_PROBLEMS: Final = 10
_MOST_SUBNETS: Final = 65_535
"""Of all networks together; those of all proxies count once for each. The map of the kernel program has room for twice
as many, and `0.0.0.0/0` of each proxy."""

_IS_TAKEN: Final = (
    "is a subnet of network {} too ({}); allowed: each subnet in one network{} (those with longer prefixes come first)"
)

_KERNEL_PROGRAM: Final = "daemon.pacing: true and sniffer.kernel_view: true"

_T = TypeVar("_T")


def load_config(path: Path, network_files: Sequence[Path] | None = None) -> Config:
    """The configuration of `path`, its devices and its network files, or of these network files.

    Raises ConfigError with all problems found, one line each.
    """
    service_file = read_yaml(path)
    problems: list[str] = []
    service = _attempt(problems, validate, ServiceFile, service_file)
    if service is not None:
        problems += [
            *_proxies(service, service_file),
            *_classifier(service, service_file),
            *_control_group(service, service_file),
            *_web(service, service_file),
        ]
    networks = _attempt(problems, _networks, service_file, network_files, service)
    loaded = _attempt(problems, lambda: load_devices(_device_files(service_file)))
    if problems or service is None or networks is None or loaded is None:
        raise ConfigError(problems)
    proxies = Proxies(_by_name(service))
    networks, devices = with_devices(networks, loaded, proxies)
    group = service.socket_group
    return Config(
        proxies=proxies,
        sniffer=service.sniffer,
        daemon=service.daemon,
        metrics=service.metrics,
        web=service.web,
        log_level=service.log_level,
        time_zone=service.time_zone,
        run_directory=Path(service.run_directory),
        state_directory=Path(service.state_directory),
        socket_group=None if group is None else SocketGroup(group, service_file.where(("socket_group",))),
        networks=networks,
        devices=devices,
    )


def config_paths(path: Path) -> tuple[Path, ...]:
    """What `load_config` reads: `path`, the network files, files of subnets, the devices, and their directories.

    Raises ConfigError.
    """
    service_file = read_yaml(path)
    files, devices = _network_files(service_file), _device_files(service_file)
    subnets_files = filter(None, (_subnets_path(read_yaml(file)) for file in files))
    directories = (each[0].parent for each in (files, devices) if each)
    return path, *directories, *files, *subnets_files, *devices


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


def find_namespace(path: Path) -> Container | Path | None:
    """The network namespace of the proxies according to `path`, whatever else is wrong with it or with network files.

    Raises ConfigError if it cannot be read from it, or if it is not the same for all.
    """
    file = read_yaml(path)
    sections = validate(NamespaceFile, file)
    by_name = {name: proxy.namespace for name, proxy in sections.proxies.items()}
    problems = [*_other_namespaces(by_name, file)]
    if problems:
        raise ConfigError(problems)
    return next(iter(by_name.values()), sections.proxy.namespace)


def _attempt(problems: list[str], load: Callable[..., _T], *arguments: object) -> _T | None:
    try:
        return load(*arguments)
    except ConfigError as error:
        problems += error.problems
        return None


def _by_name(service: ServiceFile) -> dict[str | None, Proxy]:
    # Their order in the file means nothing.
    sections = sorted(service.proxies.items()) if service.proxies else [(None, service.proxy)]
    return {name: Proxy(_interface_names(proxy), Ports(proxy.ports), proxy.namespace) for name, proxy in sections}


def _interface_names(proxy: ProxySection) -> tuple[str, ...]:
    return proxy.interfaces if proxy.interface is None else (proxy.interface, *proxy.interfaces)


def _proxies(service: ServiceFile, file: YamlFile) -> list[str]:
    if not service.proxy.ports and not service.proxies:
        return [f"{file.where(())}: proxy: is required; for several proxies: proxies"]
    if service.proxy.ports and service.proxies:
        place = f"{file.place('proxies')}: {', '.join(service.proxies)}"
        return [f"{place}: is given besides proxy; allowed: one of the two"]
    sections: dict[KeyPath, ProxySection] = {("proxies", name): proxy for name, proxy in service.proxies.items()}
    sections = sections or {("proxy",): service.proxy}
    problems = [problem for keys, proxy in sections.items() for problem in _interfaces(proxy, file, keys)]
    namespaces = {name: proxy.namespace for name, proxy in service.proxies.items()}
    return problems or [*_same_ports(service, file), *_other_namespaces(namespaces, file), *_too_many(service, file)]


def _interfaces(proxy: ProxySection, file: YamlFile, keys: KeyPath) -> list[str]:
    key = dotted(keys)
    if not _interface_names(proxy):
        return [f"{file.where(keys)}: {key}.interface: is required; for several: {key}.interfaces"]
    if proxy.interface is not None and proxy.interfaces:
        where = f"{file.place(*keys, 'interfaces')}: {', '.join(proxy.interfaces)}"
        return [f"{where}: is given besides {key}.interface; allowed: one of the two"]
    return []


def _same_ports(service: ServiceFile, file: YamlFile) -> Iterator[str]:
    earlier: dict[str, Ports] = {}
    for name, proxy in service.proxies.items():
        for index, ports in enumerate(proxy.ports):
            for owner, taken in earlier.items():
                common = taken & Ports((ports,))
                if common:
                    place = file.place("proxies", name, "ports", index)
                    yield f"{place}: {common}: belongs to proxy {owner}; allowed: each port in one proxy"
        earlier[name] = Ports(proxy.ports)


def _other_namespaces(namespaces: Mapping[str, Container | Path | None], file: YamlFile) -> Iterator[str]:
    first = next(iter(namespaces), None)
    for name, namespace in namespaces.items():
        if first is not None and namespace != namespaces[first]:
            place = f"{file.place('proxies', name, 'namespace')}: {namespace or 'null'}"
            yield f"{place}: is not that of proxy {first}; allowed: the same for all proxies"


def _too_many(service: ServiceFile, file: YamlFile) -> list[str]:
    """What the bounds of a single proxy are for all together."""
    sections = list(service.proxies.values()) or [service.proxy]
    interfaces = dict.fromkeys(name for proxy in sections for name in _interface_names(proxy))
    items = sum(len(proxy.ports) for proxy in sections)
    place = file.place("proxies") if service.proxies else file.place("proxy", "interfaces")
    if service.daemon.backend is BackEnd.OVS and len(interfaces) > 1:
        return [f"{place}: {', '.join(interfaces)}: daemon.backend: ovs has one port; allowed: one interface"]
    if len(interfaces) > MAX_INTERFACES:
        return [f"{place}: {len(interfaces)} interfaces of all proxies; allowed: up to {MAX_INTERFACES}"]
    if items > MAX_PORT_ITEMS:
        return [f"{place}: {items} ports and ranges of all proxies; allowed: up to {MAX_PORT_ITEMS}"]
    return []


def _has_kernel_program(service: ServiceFile) -> bool:
    return service.daemon.pacing and service.sniffer.kernel_view


def _control_group(service: ServiceFile, file: YamlFile) -> list[str]:
    share = service.daemon.control_group
    if not share or _has_kernel_program(service):
        return []
    place = f"{file.place('daemon', 'control_group')}: {format_share(share)}"
    return [f"{place}: needs {_KERNEL_PROGRAM}; allowed: 0%, null, or these too"]


def _classifier(service: ServiceFile, file: YamlFile) -> list[str]:
    daemon = service.daemon
    place = f"{file.place('daemon', 'classifier')}: {daemon.classifier}"
    if daemon.backend is BackEnd.OVS and daemon.classifier is not ClassifierKind.AUTO:
        return [f"{place}: has no effect with daemon.backend: ovs; allowed: auto"]
    if daemon.classifier is not ClassifierKind.SOCKET or _has_kernel_program(service):
        return []
    return [f"{place}: needs {_KERNEL_PROGRAM}; allowed: auto, nft, rules, or these too"]


def _web(service: ServiceFile, file: YamlFile) -> list[str]:
    problems, web, metrics = [], service.web, service.metrics.listen
    if web.control and web.password_hash is None:
        problems.append(f"{file.place('web', 'control')}: true: needs web.password_hash; allowed: false, or that too")
    if (web.certificate is None) != (web.key is None):
        alone, missing = ("certificate", "key") if web.key is None else ("key", "certificate")
        place = f"{file.place('web', alone)}: {getattr(web, alone)}"
        problems.append(f"{place}: needs web.{missing}; allowed: null, or that too")
    place = f"{file.place('web', 'listen')}: {web.listen}"
    is_for_network = web.listen is not None and not web.listen.host.is_loopback
    if is_for_network and None in (web.password_hash, web.certificate, web.key):
        needs = "web.password_hash, web.certificate and web.key"
        allowed = "a loopback address, or these too"
        problems.append(f"{place}: is not a loopback address, and needs {needs}; allowed: {allowed}")
    if web.listen is not None and metrics is not None and web.listen.overlaps(metrics):
        problems.append(f"{place}: metrics.listen has {metrics}; allowed: another port, or null")
    return problems


def yaml_files_in(directory: Path) -> list[Path]:
    """The files of access networks or devices in a directory, in any order, without hidden files. Raises OSError."""
    entries = (entry for entry in directory.iterdir() if not entry.name.startswith("."))
    return [entry for entry in entries if entry.suffix in {".yaml", ".yml"}]


def _network_files(service_file: YamlFile) -> list[Path]:
    name = service_file.data.get("networks_directory", NETWORKS_DIRECTORY)
    if not is_text(name):
        raise ConfigError([])  # the validation of ServiceFile reports it
    directory = service_file.path.parent / name
    prefix = f"{service_file.place('networks_directory')}: {directory}:"
    try:
        paths = sorted(yaml_files_in(directory))
    except OSError as error:
        raise ConfigError([f"{prefix} cannot be read: {error.strerror}"]) from error
    if not paths:
        raise ConfigError([f"{prefix} has no access network; allowed: one NAME.yaml per access network"])
    return paths


def _device_files(service_file: YamlFile) -> list[Path]:
    """The files of the devices; none if there is no such directory."""
    name = service_file.data.get("clients_directory", CLIENTS_DIRECTORY)
    if not is_text(name):
        return []  # the validation of ServiceFile reports it
    directory = service_file.path.parent / name
    try:
        return sorted(yaml_files_in(directory))
    except FileNotFoundError:
        return []
    except OSError as error:
        prefix = f"{service_file.place('clients_directory')}: {directory}:"
        raise ConfigError([f"{prefix} cannot be read: {error.strerror}"]) from error


def _subnets_path(network_file: YamlFile) -> Path | None:
    name = network_file.data.get("subnets_file")
    return network_file.path.parent / name if is_text(name) else None


class _Place(NamedTuple):
    """Where a subnet is: `FILE:LINE`, and in a YAML file followed by its key in `named`."""

    where: str
    named: str


class _Loaded(NamedTuple):
    """An access network with its file, and where each of its subnets is."""

    file: YamlFile
    network: AccessNetwork
    places: Mapping[Network, _Place]


def _networks(
    service_file: YamlFile, files: Sequence[Path] | None, service: ServiceFile | None
) -> tuple[AccessNetwork, ...]:
    """All networks; `service` is None if it cannot be read."""
    problems: list[str] = []
    paths = _network_files(service_file) if files is None else files
    read = [_attempt(problems, _network, path) for path in paths]
    loaded = [item for item in read if item is not None]
    proxies = () if service is None else tuple(service.proxies)
    if service is not None:
        problems += [
            *_unknown_proxies(loaded, proxies, service_file.path),
            *_impossible_rules(loaded, service),
        ]
    if not problems:
        problems += _idle_caps(loaded)
    problems += [*_same_names(loaded), *_same_subnets(loaded, proxies)]
    if problems:
        raise ConfigError(problems)
    return tuple(sorted((item.network for item in loaded), key=lambda n: (n.preference, n.name)))


def _network(path: Path) -> _Loaded:
    file = read_yaml(path)
    problems = []
    if "subnets" not in file.data and file.data.get("subnets_file") is None:
        problems.append(f"{file.place('subnets')}: is required; allowed: subnets, subnets_file, or both")
    raw = _attempt(problems, validate, NetworkFile, file)
    if raw is None or problems:
        raise ConfigError(problems)
    places = _places(file, raw)
    problems = list(_budget_starts(file, raw))
    if problems:
        raise ConfigError(problems)
    network = raw.with_subnets(places)
    problems = [*_high_caps(file, network), *_windows(file, network)]
    problems += [*_budgets(file, network), *_overflow(file, network)]
    if raw.provisional is not None and RateKind.CAP not in network.kinds:
        place = file.place("provisional")
        problems.append(f"{place}: {raw.provisional:g}s: needs a cap; allowed: null, or a cap too")
    if problems:
        raise ConfigError(problems)
    return _Loaded(file, network, places)


def _all_rates(file: YamlFile, network: AccessNetwork) -> Iterator[tuple[KeyPath, RateKind, Rate]]:
    """The rates that the network can have, and their keys: its own, those of its schedule, those of its budgets."""
    for parents, rates in _rates_by_section(file, network):
        yield from (((*parents, *RATE_KEYS[kind]), kind, rate) for kind, rate in rates.items() if rate is not None)


def _rates_by_section(
    file: YamlFile, network: AccessNetwork
) -> Iterator[tuple[KeyPath, Mapping[RateKind, Rate | None]]]:
    yield (), network.rates
    for index, window in enumerate(network.schedule):
        yield ("schedule", index), window.rates
    yield from ((keys, stage.rates) for keys, stage in _stages(file, network))


def _stages(file: YamlFile, network: AccessNetwork) -> Iterator[tuple[KeyPath, Stage]]:
    """The stages of all budgets, and their keys: `then` is a list, or the only stage."""
    for number, budget in enumerate(network.budgets):
        keys = "budgets", number, "then"
        for index, stage in enumerate(budget.stages):
            yield (*keys, index) if (*keys, 0) in file.lines else keys, stage


def _high_caps(file: YamlFile, network: AccessNetwork) -> Iterator[str]:
    for parents, section in _rates_by_section(file, network):
        rates = {**network.rates, **section}
        for direction in Direction:
            cap, limit = rates.get(direction.cap), rates.get(direction.limit)
            if cap is None or limit is None or cap <= limit:
                continue
            if direction.cap in section:
                place = file.place(*parents, *RATE_KEYS[direction.cap])
                yield f"{place}: {cap}: is more than limit; allowed: up to {limit}"
            elif direction.limit in section and parents[:1] != (
                "budgets",
            ):  # the limit of a stage narrows the cap, too
                place = file.place(*parents, *RATE_KEYS[direction.limit])
                yield f"{place}: {limit}: is less than the cap {cap}; allowed: as much, or a lower cap beside it"


def _windows(file: YamlFile, network: AccessNetwork) -> Iterator[str]:
    idle = set(never_holds(network.schedule))
    for index, window in enumerate(network.schedule):
        place = f"{file.place('schedule', index, 'when')}: {window.when}:"
        if not window.rates and window.counts:
            yield f"{place} has no rate; allowed: cap, limit and uplink beside it, or counts: false"
        if index in idle:
            yield f"{place} never counts, as earlier windows always do; allowed: another order, or without it"


def _budget_starts(file: YamlFile, raw: NetworkFile) -> Iterator[str]:
    allowed = {
        Every.DAY: "null, as a day begins at midnight",
        Every.WEEK: f"null, or one of {', '.join(WEEKDAYS)}",
        Every.MONTH: "null, or a number from 1 to 31",
    }
    for index, budget in enumerate(raw.budgets):
        fitting = {Every.DAY: type(None), Every.WEEK: str | None, Every.MONTH: int | None}[budget.every]
        if not isinstance(budget.starts, fitting):
            place = f"{file.place('budgets', index, 'starts')}: {budget.starts}"
            yield f"{place}: does not fit every: {budget.every}; allowed: {allowed[budget.every]}"


def _budgets(file: YamlFile, network: AccessNetwork) -> Iterator[str]:
    for index, budget in enumerate(network.budgets):
        place, parts = file.place("budgets", index), [stage.at for stage in budget.stages]
        if budget.key in [earlier.key for earlier in network.budgets[:index]]:
            yield f"{place}: has the per, direction and every of an earlier budget; allowed: one such budget"
        if parts != sorted(set(parts)):
            texts = ", ".join(map(format_share, parts))
            yield f"{file.place('budgets', index, 'then')}: at {texts}: allowed: each once, the lowest first"
    for keys, stage in _stages(file, network):
        if not stage.rates:
            yield f"{file.place(*keys)}: has no rate; allowed: cap, limit and uplink in it"
        for kind, rate in stage.rates.items():
            configured = network.rates.get(kind)
            if configured is not None and rate >= configured:
                problem = f"{rate}: is not less than the {kind} {configured} of the network; allowed: less"
                yield f"{file.place(*keys, *RATE_KEYS[kind])}: {problem}"


def _overflow(file: YamlFile, network: AccessNetwork) -> Iterator[str]:
    overflow, cap = network.overflow, network.rates.get(RateKind.CAP)
    if overflow is None:
        return
    place = f"{file.place('overflow')}: {overflow}"
    if cap is None:
        yield f"{place}: needs a cap; allowed: null, or a cap too"
    elif overflow <= cap:
        yield f"{place}: is not more than the cap {cap}; allowed: more, or null"
    if network.per is not Per.CLIENT:
        yield f"{place}: needs per: client, as it depends on the paths of each client; allowed: null, or that too"


def _impossible_rules(loaded: list[_Loaded], service: ServiceFile) -> Iterator[str]:
    """What needs the proxy's sockets where there are none, or steering where it is switched off."""
    for file, network, _ in loaded:
        if network.budgets and not service.sniffer.kernel_view:
            needs = "sniffer.kernel_view: true, as bytes are counted at the proxy's sockets"
            yield f"{file.place('budgets')}: needs {needs}; allowed: [], or that too"
        if network.overflow is not None and not (_has_kernel_program(service) and service.daemon.steering):
            place = f"{file.place('overflow')}: {network.overflow}"
            yield f"{place}: needs {_KERNEL_PROGRAM} and daemon.steering: true; allowed: null, or these too"


def _places(file: YamlFile, raw: NetworkFile) -> dict[Network, _Place]:
    """The subnets of a network, those in `subnets` first, and where each is."""
    places: dict[Network, _Place] = {}
    for index, subnet in enumerate(raw.subnets):
        keys = ("subnets", index)
        places.setdefault(subnet, _Place(file.where(keys), file.place(*keys)))
    path = _subnets_path(file)
    if path is None:
        return places
    for subnet, line in read_subnets(path, file.place("subnets_file")).items():
        where = f"{path}:{line}"
        places.setdefault(subnet, _Place(where, where))
    return places


def _idle_caps(loaded: list[_Loaded]) -> list[str]:
    networks = [item.network for item in loaded]
    problem = "never applies on a most preferred network; allowed: null, or limit instead"
    return [
        f"{file.place(*key)}: {cap}: {problem}"
        for file, network, _ in loaded
        for key, kind, cap in _all_rates(file, network)
        if kind.is_cap and network.is_most_preferred(networks)
    ]


def _same_names(loaded: list[_Loaded]) -> Iterator[str]:
    names: dict[str, YamlFile] = {}
    for file, network, _ in loaded:
        if network.name in names:
            yield (
                f"{file.place('name')}: {network.name}: is taken by {names[network.name].path};"
                " allowed: a different name for each network"
            )
        names.setdefault(network.name, file)


def _unknown_proxies(loaded: list[_Loaded], proxies: tuple[str, ...], service_file: Path) -> Iterator[str]:
    for file, network, _ in loaded:
        if network.proxy is not None and network.proxy not in proxies:
            allowed = ", ".join(["null", *proxies])
            yield f"{file.place('proxy')}: {network.proxy}: is not in proxies of {service_file}; allowed: {allowed}"


def _same_subnets(loaded: list[_Loaded], proxies: tuple[str, ...]) -> list[str]:
    """A line per subnet of two networks, up to a bound; and a line if all networks together have too many."""
    problems: list[str] = []
    owners: dict[tuple[str | None, Network], _Loaded] = {}
    of_each = " of a proxy" if proxies else ""
    for item in loaded:
        concerned = (proxies or (None,)) if item.network.proxy is None else (item.network.proxy,)
        for subnet, place in item.places.items():
            known = [owners.setdefault((proxy, subnet), item) for proxy in concerned]
            owner = next((each for each in known if each is not item), None)
            if owner is not None:
                taken = _IS_TAKEN.format(owner.network.name, owner.places[subnet].where, of_each)
                problems.append(f"{place.named}: {subnet}: {taken}")
    if len(problems) > _MOST_PROBLEMS:
        rest = len(problems) - _MOST_PROBLEMS
        problems[_MOST_PROBLEMS:] = [
            f"{rest} more subnets are in two networks; allowed: each subnet in one network{of_each}"
        ]
    if len(owners) > _MOST_SUBNETS:
        where = loaded[0].file.path.parent
        problems.append(f"{where}: {len(owners)} subnets in all networks together; allowed: up to {_MOST_SUBNETS}")
    return problems
