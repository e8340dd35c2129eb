"""Loads the devices: a file each in `clients.d/`, checked against the access networks and against each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from mptcp_throttle.config.budget_checks import budget_problems, period_problems, stage_key
from mptcp_throttle.config.network_schema import RATE_KEYS, DeviceFile
from mptcp_throttle.config.validation import validate
from mptcp_throttle.config.yaml_file import YamlFile, parse_yaml, read_yaml_text
from mptcp_throttle.devices import shown_prefix
from mptcp_throttle.errors import ConfigError, listed, shown
from mptcp_throttle.model import AccessNetwork, Device, Devices, Direction, NamedClient, Network, RateKind, Stage
from mptcp_throttle.proxies import Proxies, networks_of
from mptcp_throttle.subnet_table import SubnetTable, network_table
from mptcp_throttle.units import Rate

MAX_DEVICES: Final = 10_000

_MAX_PREFIXES: Final = 50_000
"""Of all devices; those of all proxies count once for each. They are in the map of the kernel program, too."""

_MOST_PROBLEMS: Final = 10


class _Loaded(NamedTuple):
    """A device with its file."""

    path: Path
    text: str
    device: Device

    def place(self, *keys: str | int) -> str:
        """`FILE:LINE: KEY`, with which a problem of this key begins."""
        return self.file.place(*keys)

    @property
    def file(self) -> YamlFile:
        """The file with its lines."""
        # Only problems need these, and with thousands of files they would be much to keep.
        return parse_yaml(self.path, self.text)


class _Place(NamedTuple):
    """A prefix of a device in one access network, made of the address with this `number` in the list."""

    prefix: Network
    written: Network
    loaded: _Loaded
    number: int


def load_devices(paths: Sequence[Path]) -> list[_Loaded]:
    """The devices of these files, each valid by itself. Raises ConfigError with all problems, up to a bound."""
    if len(paths) > MAX_DEVICES:
        raise ConfigError([f"{paths[0].parent}: {len(paths)} devices; allowed: up to {MAX_DEVICES}"])
    loaded, problems = [], []
    for path in paths:
        try:
            text = read_yaml_text(path)
            loaded.append(_Loaded(path, text, _device(path, text)))
        except ConfigError as error:
            problems += error.problems
    _refuse(problems)
    return loaded


@lru_cache(2 * MAX_DEVICES)
def _device(path: Path, text: str) -> Device:
    """To parse thousands of files takes seconds: a reload parses those that have changed."""
    file = parse_yaml(path, text)
    raw = validate(DeviceFile, file)
    problems = list(period_problems(file, raw.budgets))
    if not problems:
        problems = [*budget_problems(file, raw.device.budgets, "direction and every"), *_absent_networks(file, raw)]
    if problems:
        raise ConfigError(problems)
    return raw.device


def _absent_networks(file: YamlFile, raw: DeviceFile) -> Iterator[str]:
    """Networks of budgets in which the device has no address."""
    for index, budget in enumerate(raw.budgets):
        for number, name in enumerate(budget.networks or ()):
            if name not in raw.networks:
                place = f"{file.place('budgets', index, 'networks', number)}: {shown(name)}"
                yield f"{place}: the device has no address there; allowed: {listed(list(raw.networks), 10)}"


def with_devices(
    networks: Sequence[AccessNetwork], loaded: Sequence[_Loaded], proxies: Proxies, *, kernel_view: bool = True
) -> tuple[tuple[AccessNetwork, ...], tuple[Device, ...]]:
    """The access networks with their devices, and all devices by name. `kernel_view` is that of the sniffer.

    Raises ConfigError with all problems found, up to a bound.
    """
    if not loaded:
        return tuple(networks), ()
    problems = [*_same_names(loaded, networks), *_unknown_networks(loaded, networks)]
    _refuse(problems)
    by_name = {network.name: network for network in networks}
    problems += _idle_caps(loaded, by_name)
    problems += _high_caps(loaded, by_name)
    problems += _idle_stages(loaded, by_name)
    problems += () if kernel_view else _uncounted(loaded)
    problems += _elsewhere(loaded, networks, proxies)
    places = {network.name: _places(network, loaded) for network in networks}
    for network in networks:
        problems += _same_addresses(network, places[network.name])
    _refuse(problems)
    number = sum(len(proxies.numbers_of(network.proxy)) * len(places[network.name]) for network in networks)
    if number > _MAX_PREFIXES:
        where = loaded[0].path.parent
        raise ConfigError([f"{where}: {number} addresses of all devices together; allowed: up to {_MAX_PREFIXES}"])
    devices = sorted((item.device for item in loaded), key=lambda device: device.name)
    return tuple(replace(each, devices=_devices(each, places[each.name])) for each in networks), tuple(devices)


def _refuse(problems: list[str]) -> None:
    """Raise ConfigError if there are problems; of thousands, the first only."""
    if len(problems) > _MOST_PROBLEMS:
        rest = len(problems) - _MOST_PROBLEMS
        problems[_MOST_PROBLEMS:] = [f"{rest} more problems of devices; allowed: files without any"]
    if problems:
        raise ConfigError(problems)


def _same_names(loaded: Iterable[_Loaded], networks: Iterable[AccessNetwork]) -> Iterator[str]:
    owners = {network.name: "an access network" for network in networks}
    for item in loaded:
        device = item.device
        if device.name in owners:
            place, owner = f"{item.place('name')}: {device.name}", owners[device.name]
            yield f"{place}: is taken by {owner}; allowed: a different name for each device and access network"
        owners.setdefault(device.name, str(item.path))


def _unknown_networks(loaded: Iterable[_Loaded], networks: Iterable[AccessNetwork]) -> Iterator[str]:
    known = [network.name for network in networks]
    for item in loaded:
        device = item.device
        for name in device.addresses:
            if name not in known:
                yield f"{item.place('networks', name)}: is not an access network; allowed: {listed(known, 10)}"


def _idle_caps(loaded: Iterable[_Loaded], networks: Mapping[str, AccessNetwork]) -> Iterator[str]:
    most_preferred = {name for name, each in networks.items() if each.is_most_preferred(networks.values())}
    for item in loaded:
        device = item.device
        for name, rates in device.rates.items():
            for kind, rate in rates.items():
                if kind.is_cap and rate is not None and name in most_preferred:
                    place = f"{item.place('networks', name, *RATE_KEYS[kind])}: {rate}"
                    yield f"{place}: never applies on a most preferred network; allowed: null, or limit instead"


def _high_caps(loaded: Iterable[_Loaded], networks: Mapping[str, AccessNetwork]) -> Iterator[str]:
    """Caps above a limit, of which at least one is the device's own; by the windows of the schedule, too."""
    for item in loaded:
        device = item.device
        for name, own in device.rates.items():
            network = networks[name]
            for direction in Direction:
                if direction.cap not in own and direction.limit not in own:
                    continue
                for where, rates in _rates_of(network):
                    present = {**rates, **own}
                    cap, limit = present.get(direction.cap), present.get(direction.limit)
                    if cap is None or limit is None or cap <= limit:
                        continue
                    if direction.cap in own:
                        place = item.place("networks", name, *RATE_KEYS[direction.cap])
                        whose = "limit" if direction.limit in own else f"the limit of {where}"
                        yield f"{place}: {cap}: is more than {whose}; allowed: up to {limit}"
                    else:
                        place = item.place("networks", name, *RATE_KEYS[direction.limit])
                        allowed = "as much, or a lower cap beside it"
                        yield f"{place}: {limit}: is less than the cap {cap} of {where}; allowed: {allowed}"
                    break


def _idle_stages(loaded: Iterable[_Loaded], networks: Mapping[str, AccessNetwork]) -> Iterator[str]:
    """Rates of stages that narrow nothing, in none of the networks of their budget."""
    most_preferred = {name for name, each in networks.items() if each.is_most_preferred(networks.values())}
    for item, index, number, stage in _stages(loaded):
        names = item.device.budgets[index].networks
        for kind, rate in stage.rates.items():
            concerned = [name for name in names if not (kind.is_cap and name in most_preferred)]
            own = item.device.rates
            present = [{**networks[name].rates, **own.get(name, {})}.get(kind) for name in concerned]
            highest = max((each for each in present if each is not None), default=None)
            if not concerned:
                problem = "never applies on a most preferred network; allowed: limit instead"
            elif highest is not None and None not in present and rate >= highest:
                problem = f"is not less than the {kind} {highest} of {listed(concerned, 10)}; allowed: less"
            else:
                continue
            place = item.place(*stage_key(item.file, index, number), *RATE_KEYS[kind])
            yield f"{place}: {rate}: {problem}"


def _stages(loaded: Iterable[_Loaded]) -> Iterator[tuple[_Loaded, int, int, Stage]]:
    """The stages of all budgets, with the numbers of budget and stage."""
    for item in loaded:
        for index, budget in enumerate(item.device.budgets):
            yield from ((item, index, number, stage) for number, stage in enumerate(budget.stages))


def _uncounted(loaded: Iterable[_Loaded]) -> Iterator[str]:
    for item in loaded:
        if item.device.budgets:
            needs = "sniffer.kernel_view: true, as bytes are counted at the proxy's sockets"
            yield f"{item.place('budgets')}: needs {needs}; allowed: [], or that too"


def _rates_of(network: AccessNetwork) -> Iterator[tuple[str, Mapping[RateKind, Rate | None]]]:
    yield network.name, network.rates
    for window in network.schedule:
        yield f"{network.name} ({window.when})", {**network.rates, **window.rates}


def _elsewhere(loaded: Iterable[_Loaded], networks: Sequence[AccessNetwork], proxies: Proxies) -> Iterator[str]:
    """Addresses that are not in the access network that has them, by the longest of the subnets around each."""
    tables = [network_table(networks_of(proxy, networks)) for proxy in proxies.by_name]
    for item in loaded:
        device = item.device
        for name, prefixes in device.addresses.items():
            for index, prefix in enumerate(prefixes):
                around = _around(prefix, tables)
                if name not in around:
                    place = f"{item.place('networks', name, 'addresses', index)}: {shown_prefix(prefix)}"
                    where = listed(dict.fromkeys(around)) if around else "no access network"
                    yield f"{place}: is in {where}; allowed: an address or a prefix in {name}"


def _around(prefix: Network, tables: Iterable[SubnetTable[AccessNetwork]]) -> list[str]:
    """The names of the access networks that contain a prefix as a whole."""
    host_bits = prefix.max_prefixlen - prefix.prefixlen
    known = (table.find(prefix.network_address, host_bits) for table in tables)
    return [network.name for network in known if network is not None]


def _places(network: AccessNetwork, loaded: Iterable[_Loaded]) -> list[_Place]:
    """The prefixes of all devices in a network, at least as short as its client prefix; in the order of addresses."""
    places = []
    for item in loaded:
        for number, written in enumerate(item.device.addresses.get(network.name, ())):
            bits = min(written.prefixlen, network.client_prefix.bits(written.network_address))
            prefix = written if bits == written.prefixlen else written.supernet(new_prefix=bits)
            places.append(_Place(prefix, written, item, number))
    return sorted(places, key=lambda each: _order(each.prefix))


def _order(prefix: Network) -> tuple[int, int, int]:
    return prefix.version, int(prefix.network_address), prefix.prefixlen


def _same_addresses(network: AccessNetwork, places: Iterable[_Place]) -> Iterator[str]:
    """Prefixes of different devices with an address in common: one is then a part of the other."""
    around: _Place | None = None
    for place in places:
        if around is None or not _is_within(place.prefix, around.prefix):
            around = place
        elif place.loaded is not around.loaded:
            written = f"{_where(network, place)}: {shown_prefix(place.written)}"
            where = _where(network, around).rpartition(": ")[0]
            owner = f"device {around.loaded.device.name} ({where})"
            why = _by_prefix(network, place, around)
            yield f"{written}: belongs to {owner}{why}; allowed: each address in one device"


def _where(network: AccessNetwork, place: _Place) -> str:
    return place.loaded.place("networks", network.name, "addresses", place.number)


def _by_prefix(network: AccessNetwork, place: _Place, around: _Place) -> str:
    """What makes addresses those of one client that are different as they are written."""
    if _is_within(place.written, around.written) or _is_within(around.written, place.written):
        return ""
    bits = network.client_prefix.bits(place.prefix.network_address)
    return f", as client_prefix.ipv{place.prefix.version} of {network.name} is {bits}"


def _is_within(prefix: Network, around: Network) -> bool:
    return (
        prefix.version == around.version and prefix.prefixlen >= around.prefixlen and prefix.network_address in around
    )


def _devices(network: AccessNetwork, places: Iterable[_Place]) -> Devices:
    """The devices of a network: without prefixes that are a part of another."""
    prefixes: dict[str, list[Network]] = {}
    devices: dict[str, Device] = {}
    last: Network | None = None
    for prefix, _, loaded, _ in places:
        if last is None or not _is_within(prefix, last):
            last = prefix
            prefixes.setdefault(loaded.device.name, []).append(prefix)
            devices[loaded.device.name] = loaded.device
    return Devices(tuple(_client(devices[name], network.name, own) for name, own in prefixes.items()))


def _client(device: Device, network: str, prefixes: Iterable[Network]) -> NamedClient:
    """A device in one network."""
    budgets = tuple(budget for budget in device.budgets if network in budget.networks)
    return NamedClient(device.name, tuple(prefixes), device.rates.get(network, {}), budgets)
