"""What the keys of an access network's file must be for each other, and for the service file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mptcp_throttle.config.budget_checks import budget_problems, stage_key
from mptcp_throttle.config.network_schema import RATE_KEYS
from mptcp_throttle.config.schema import ServiceFile
from mptcp_throttle.config.service_checks import KERNEL_PROGRAM, has_kernel_program
from mptcp_throttle.config.yaml_file import KeyPath, YamlFile
from mptcp_throttle.model import AccessNetwork, Direction, Per, RateKind, Stage
from mptcp_throttle.schedule import never_holds
from mptcp_throttle.units import MAX_BURST_SECONDS, MIN_BURST_SECONDS, Rate, format_volume


def network_problems(file: YamlFile, network: AccessNetwork) -> list[str]:
    """What is wrong in a network's file each of whose keys is valid by itself, a line each."""
    return [
        *_high_caps(file, network),
        *_windows(file, network),
        *_budgets(file, network),
        *_overflow(file, network),
        *_burst(file, network),
        *_shared(file, network),
        *_provisional(file, network),
    ]


def impossible_rules(file: YamlFile, network: AccessNetwork, service: ServiceFile) -> Iterator[str]:
    """What needs the proxy's sockets where there are none, or steering where it is switched off.

    A pace without steering leaves a capped subflow no burst.
    """
    if network.budgets and not service.sniffer.kernel_view:
        needs = "sniffer.kernel_view: true, as bytes are counted at the proxy's sockets"
        yield f"{file.place('budgets')}: needs {needs}; allowed: [], or that too"
    if network.shared and (service.fleet.url is None or not service.sniffer.kernel_view):
        needs = "needs fleet.url, and sniffer.kernel_view: true, as demand is read at the proxy's sockets"
        yield f"{file.place('shared')}: true: {needs}; allowed: false, or these too"
    if network.overflow is not None and not (has_kernel_program(service) and service.daemon.steering):
        place = f"{file.place('overflow')}: {network.overflow}"
        yield f"{place}: needs {KERNEL_PROGRAM} and daemon.steering: true; allowed: null, or these too"
    is_paced = has_kernel_program(service) and not service.daemon.steering
    if network.burst and is_paced and RateKind.CAP in network.kinds:
        place = f"{file.place('burst')}: {format_volume(network.burst)}"
        needs = "needs daemon.steering: true, or daemon.pacing: false, as the network has a cap"
        yield f"{place}: {needs}; allowed: null, or one of these too"


def all_rates(file: YamlFile, network: AccessNetwork) -> Iterator[tuple[KeyPath, RateKind, Rate]]:
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
    """The stages of all budgets, and their keys."""
    for index, budget in enumerate(network.budgets):
        yield from ((stage_key(file, index, number), stage) for number, stage in enumerate(budget.stages))


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
            # The limit of a stage narrows the cap, too.
            elif direction.limit in section and parents[:1] != ("budgets",):
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


def _budgets(file: YamlFile, network: AccessNetwork) -> Iterator[str]:
    yield from budget_problems(file, network.budgets, "per, direction and every")
    for keys, stage in _stages(file, network):
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
    if cap is not None and overflow <= cap:
        yield f"{place}: is not more than the cap {cap}; allowed: more, or null"
    if network.per is not Per.CLIENT:
        yield f"{place}: needs per: client, as it depends on the paths of each client; allowed: null, or that too"


def _burst(file: YamlFile, network: AccessNetwork) -> Iterator[str]:
    if not network.burst:
        return
    place = f"{file.place('burst')}: {format_volume(network.burst)}"
    rates = [rate for _, kind, rate in all_rates(file, network) if kind.direction is Direction.DOWNLINK]
    if not rates:
        yield f"{place}: needs a cap or limit of downloads; allowed: null, or one of these too"
        return
    highest, lowest = max((*rates, *filter(None, [network.overflow]))), min(rates)
    most, least = highest.bytes_per_second * MAX_BURST_SECONDS, round(lowest.bytes_per_second * MIN_BURST_SECONDS)
    if network.burst > most:
        allowed = f"allowed: up to {format_volume(most)}"
        yield f"{place}: is more than {highest} carries in {MAX_BURST_SECONDS} s; {allowed}"
    elif network.burst <= least:
        allowed = f"allowed: null, or more than {format_volume(least)}"
        yield f"{place}: is no more than {lowest} carries in {MIN_BURST_SECONDS:g} s; {allowed}"
    if network.per is Per.SUBFLOW:
        yield f"{place}: each new subflow would have its own; allowed: null, or per: client or network"
    if network.provisional:
        yield f"{place}: has no effect on connections that begin at the pace of provisional; allowed: one of the two"


def _shared(file: YamlFile, network: AccessNetwork) -> Iterator[str]:
    if not network.shared:
        return
    place = f"{file.place('shared')}: true"
    if network.per is not Per.CLIENT:
        yield f"{place}: needs per: client, by which proxies know whose a rate is; allowed: false, or that too"
    if network.overflow is not None:
        yield f"{place}: each proxy would have an overflow of its own; allowed: false, or overflow: null"
    if network.burst:
        yield f"{place}: each proxy would have a burst of its own; allowed: false, or burst: null"


def _provisional(file: YamlFile, network: AccessNetwork) -> Iterator[str]:
    if network.provisional and RateKind.CAP not in network.kinds:
        place = file.place("provisional")
        yield f"{place}: {network.provisional:g}s: needs a cap; allowed: null, or a cap too"
