"""Loads the access networks: a file each in `networks.d/`, checked against the service file and against each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from mptcp_throttle.config.budget_checks import period_problems
from mptcp_throttle.config.network_checks import all_rates, impossible_rules, network_problems
from mptcp_throttle.config.network_schema import NetworkFile
from mptcp_throttle.config.schema import ServiceFile
from mptcp_throttle.config.subnets import read_subnets
from mptcp_throttle.config.validation import attempt, is_text, validate
from mptcp_throttle.config.yaml_file import YamlFile, read_yaml
from mptcp_throttle.errors import ConfigError
from mptcp_throttle.model import AccessNetwork, Network, RateKind

_MOST_PROBLEMS: Final = 10
MOST_SUBNETS: Final = 65_535
"""Of all networks together; those of all proxies count once for each. The map of the kernel program has room for twice
as many, and `0.0.0.0/0` of each proxy."""

_IS_TAKEN: Final = (
    "is a subnet of network {} too ({}); allowed: each subnet in one network{} (those with longer prefixes come first)"
)


class _Place(NamedTuple):
    """Where a subnet is: `FILE:LINE`, and in a YAML file followed by its key in `named`."""

    where: str
    named: str


class _Loaded(NamedTuple):
    """An access network with its file, and where each of its subnets is."""

    file: YamlFile
    network: AccessNetwork
    places: Mapping[Network, _Place]


def load_networks(paths: Iterable[Path], service_path: Path, service: ServiceFile | None) -> tuple[AccessNetwork, ...]:
    """The networks of these files; `service` is None if the service file is not valid.

    Raises ConfigError with all problems.
    """
    problems: list[str] = []
    read = [attempt(problems, _network, path) for path in paths]
    loaded = [item for item in read if item is not None]
    proxies = () if service is None else tuple(service.proxies)
    if service is not None:
        problems += [
            *_unknown_proxies(loaded, proxies, service_path),
            *(problem for item in loaded for problem in impossible_rules(item.file, item.network, service)),
        ]
    if not problems:
        problems += [*_idle_caps(loaded), *_idle_overflows(loaded)]
    problems += [*_same_names(loaded), *_same_subnets(loaded, proxies)]
    if problems:
        raise ConfigError(problems)
    return tuple(sorted((item.network for item in loaded), key=lambda n: (n.preference, n.name)))


def _network(path: Path) -> _Loaded:
    file = read_yaml(path)
    problems = []
    if "subnets" not in file.data and file.data.get("subnets_file") is None:
        problems.append(f"{file.place('subnets')}: is required; allowed: subnets, subnets_file, or both")
    raw = attempt(problems, validate, NetworkFile, file)
    if raw is None or problems:
        raise ConfigError(problems)
    places = _places(file, raw)
    problems = list(period_problems(file, raw.budgets))
    if problems:
        raise ConfigError(problems)
    network = raw.with_subnets(places)
    problems = network_problems(file, network)
    if problems:
        raise ConfigError(problems)
    return _Loaded(file, network, places)


def _places(file: YamlFile, raw: NetworkFile) -> dict[Network, _Place]:
    """The subnets of a network, those in `subnets` first, and where each is."""
    places: dict[Network, _Place] = {}
    for index, subnet in enumerate(raw.subnets):
        keys = ("subnets", index)
        places.setdefault(subnet, _Place(file.where(keys), file.place(*keys)))
    path = subnets_path(file)
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
        for key, kind, cap in all_rates(file, network)
        if kind.is_cap and network.is_most_preferred(networks)
    ]


def _idle_overflows(loaded: list[_Loaded]) -> Iterator[str]:
    """Overflows that raise no cap: those of most preferred networks, and those of others without a cap."""
    networks = [item.network for item in loaded]
    for file, network, _ in loaded:
        if network.overflow is None:
            continue
        place = f"{file.place('overflow')}: {network.overflow}"
        if network.is_most_preferred(networks):
            yield f"{place}: never applies on a most preferred network; allowed: null"
        elif RateKind.CAP not in network.rates:
            yield f"{place}: needs a cap; allowed: null, or a cap too"


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
    if len(owners) > MOST_SUBNETS:
        where = loaded[0].file.path.parent
        problems.append(f"{where}: {len(owners)} subnets in all networks together; allowed: up to {MOST_SUBNETS}")
    return problems


def subnets_path(network_file: YamlFile) -> Path | None:
    """The file of subnets that a network's file names; None: none."""
    name = network_file.data.get("subnets_file")
    return network_file.path.parent / name if is_text(name) else None
