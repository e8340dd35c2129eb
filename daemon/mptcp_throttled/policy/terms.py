"""The terms of access networks: the configured rates, after all rules. Pure functions.

To add a rule:

1. Write `policy/rules/NAME.py` with `apply(terms, given) -> Terms`. It returns the terms with a
   `Term(rate, reason, next_change, rule)` in place of each that it changes, and knows neither kernel nor other rules.
   Its name is in `RuleName`.
2. `reason` is a few words for the operator (`by hand`). `next_change` is when `apply` will say something else although
   no fact changes: the loop computes all terms again then. Without a `next_change` a rule must depend on facts alone.
3. Name it in `RULES`. A later rule sees the rates as earlier ones have changed them. What is set by hand replaces
   everything; only `fleet` comes after it, which divides any rate.
4. If the terms of single clients may differ from their network's, add these clients to `_clients_with_facts`. There may
   be thousands, so a rule should do little for each. Clients with equal facts share terms, unless they are devices or
   have rates by hand. A rule must therefore not use the address itself.
5. If the rule is configured, add its keys to `NetworkFile` (`config/schema.py`), what they demand of other keys to
   `config/network_checks.py`, a field to `AccessNetwork` (`model.py`), and a comment to the shipped network file. If it
   depends on anything else, such as traffic, add that to `Facts`.

Decisions, plan, uplinks, the log, `status` and metrics take the rates from the terms: none of them knows the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Final

from mptcp_throttle.model import AccessNetwork, Address, Direction, RateKind
from mptcp_throttle.schedule import next_change, window_at
from mptcp_throttle.units import Rate
from mptcp_throttled.policy.rules import budget, device, fleet, overflow, override, schedule
from mptcp_throttled.vocabulary.fleet import RateKey
from mptcp_throttled.vocabulary.operator import Override
from mptcp_throttled.vocabulary.terms import (
    UNLIMITED,
    ClientKey,
    Facts,
    PresentTerms,
    PresentWindow,
    RuleInput,
    Term,
    Terms,
    WallClock,
)

Rule = Callable[[Terms, RuleInput], Terms]

RULES: Final[tuple[Rule, ...]] = (
    *(schedule.apply, device.apply, overflow.apply, budget.apply, override.apply),
    fleet.apply,
)


def rule_input(network: AccessNetwork, client: Address | None, now: float, facts: Facts) -> RuleInput:
    """The input of rules for a client of a network, by its first address (None: any), at `now` in monotonic seconds."""
    return RuleInput(network, client, now, facts, _present_window(network, now, facts.wall_clock))


def _present_window(network: AccessNetwork, now: float, wall_clock: WallClock) -> PresentWindow:
    schedule, (offset, zone) = network.schedule, wall_clock
    if not schedule:
        return PresentWindow()
    change = next_change(schedule, now + offset, zone)
    return PresentWindow(window_at(schedule, now + offset, zone), None if change is None else change - offset)


def steps(given: RuleInput) -> list[Terms]:
    """The configured rates, and then the terms after each of the rules. The last are the terms that apply."""
    made: list[Terms] = [{kind: Term(rate) for kind, rate in given.network.rates.items()}]
    for rule in RULES:
        made.append(rule(made[-1], given))
    return made


class OwnTerms:
    """The terms of those clients of one network whose terms differ from the network's.

    Of thousands of clients, only those with changed facts are computed again. Equal terms are one object.
    """

    def __init__(self) -> None:
        self._common: object = None
        self._known: dict[Address, tuple[object, Terms]] = {}
        self._by_facts: dict[object, Terms] = {}
        self._equal: dict[object, Terms] = {}

    def of(
        self, given: RuleInput, of_network: Terms, by_hand: Mapping[Address, Iterable[Override]]
    ) -> Iterator[tuple[Address, Terms]]:
        """The terms of the clients that have facts of their own, by first address.

        `given` is the input of rules for the network, `of_network` its terms, `by_hand` the overrides of its clients.
        The caller must make a new object when terms change by themselves (`next_change`).
        """
        name, facts = given.network.name, given.facts
        spent, shortfalls = facts.spent.get(name, {}), facts.shortfalls.get(name, {})
        leased = _leased(given.network, facts)
        shared = None if facts.shared is None else facts.shared._replace(leased={})
        common_facts = facts._replace(spent={}, shortfalls={}, shared=shared)
        common = given.network, given.present, of_network, spent.get(None), common_facts
        if common != self._common:
            self._common, self._known, self._by_facts, self._equal = common, {}, {}, {}
        known, self._known = self._known, {}
        devices = given.network.devices.by_first
        for client in _clients_with_facts(given.network, by_hand, facts):
            its_own = spent.get(client), shortfalls.get(client), by_hand.get(client), leased.get(client)
            before = known.get(client)
            if before is None or before[0] != its_own:
                # All that rules know of a client that is no device and has no rates by hand.
                by_facts_alone = client not in by_hand and client not in devices
                own = self._by_facts.get(its_own) if by_facts_alone else None
                if own is None:
                    its_facts = facts._replace(overrides=(*facts.overrides, *by_hand.get(client, ())))
                    own = _own(steps(given._replace(client=client, facts=its_facts))[-1], of_network)
                    own = self._equal.setdefault(tuple(own.items()), own)
                    if by_facts_alone:
                        self._by_facts[its_own] = own
                before = its_own, own
            self._known[client] = before
            if before[1]:
                yield client, before[1]


def terms_of(
    networks: Iterable[AccessNetwork], now: float, facts: Facts, known: Mapping[str, OwnTerms] | None = None
) -> PresentTerms:
    """The terms of all networks, and of the clients whose terms differ from their network's.

    `known` has what was computed before, by network. `now`, in monotonic seconds, must be before its next change.
    """
    by_network: dict[str, Terms] = {}
    by_client: dict[ClientKey, Terms] = {}
    bursts: dict[str, int] = {}
    for network in networks:
        if network.burst:
            bursts[network.name] = network.burst
        # Overrides of a client concern no other client.
        by_hand, of_network = _of_clients(network, facts.overrides), _of_network(network, facts.overrides)
        given = rule_input(network, None, now, facts._replace(overrides=of_network))
        present = by_network[network.name] = steps(given)[-1]
        own_terms = OwnTerms() if known is None else known[network.name]
        by_client |= {(network.name, client): own for client, own in own_terms.of(given, present, by_hand)}
        if any(device.rates for device in network.devices.clients):
            for client, own in _of_other_devices(given, _clients_with_facts(network, by_hand, facts), present):
                by_client[network.name, client] = own
    return PresentTerms(by_network, by_client, bursts)


def terms_of_subject(network: AccessNetwork, client: Address | None, now: float, facts: Facts) -> Terms:
    """The terms of a client of a network, by its first address; None: of the network. `now`: monotonic seconds."""
    by_hand = () if client is None else _of_clients(network, facts.overrides).get(client, ())
    overrides = (*_of_network(network, facts.overrides), *by_hand)
    return steps(rule_input(network, client, now, facts._replace(overrides=overrides)))[-1]


def _of_other_devices(
    given: RuleInput, with_facts: Container[Address], of_network: Terms
) -> Iterator[tuple[Address, Terms]]:
    """The terms of the devices with own rates that have no facts of their own, as those `with_facts` have.

    Devices with the same rates share them: facts may change several times a second, with thousands of devices.
    """
    by_rates: dict[tuple[tuple[RateKind, Rate | None], ...], Terms] = {}
    for client in given.network.devices.clients:
        if client.rates and client.first not in with_facts:
            rates = tuple(client.rates.items())
            if rates not in by_rates:
                by_rates[rates] = _own(steps(given._replace(client=client.first))[-1], of_network)
            if by_rates[rates]:
                yield client.first, by_rates[rates]


def _clients_with_facts(network: AccessNetwork, by_hand: Iterable[Address], facts: Facts) -> dict[Address, None]:
    """The first addresses of the clients of a network that facts are about, rather than about all clients."""
    counted = (*facts.spent.get(network.name, ()), *facts.shortfalls.get(network.name, ()), *_leased(network, facts))
    return dict.fromkeys((*by_hand, *(network.client(each) for each in counted if each is not None)))


def _leased(network: AccessNetwork, facts: Facts) -> dict[Address, tuple[int, ...]]:
    """By client of a network that shares its rates: what is leased for it in each direction, in parts of `WHOLE`."""
    if not network.shared or facts.shared is None:
        return {}
    leased = facts.shared.leased
    clients = dict.fromkeys(key.client for key in leased if key.network == network.name)
    return {
        client: tuple(leased.get(RateKey(network.name, client, direction), 0) for direction in Direction)
        for client in clients
    }


def _of_network(network: AccessNetwork, overrides: Iterable[Override]) -> tuple[Override, ...]:
    return tuple(setting for setting in overrides if setting.network == network.name and setting.client is None)


def _of_clients(network: AccessNetwork, overrides: Iterable[Override]) -> dict[Address, list[Override]]:
    """The overrides of the clients of a network, by the first address of each."""
    by_client: dict[Address, list[Override]] = {}
    for setting in overrides:
        if setting.network == network.name and setting.client is not None:
            by_client.setdefault(network.client(setting.client), []).append(setting)
    return by_client


def _own(of_client: Terms, of_network: Terms) -> Terms:
    """The client's terms for each direction in which they differ from the network's: both kinds, as a limit bounds the
    cap."""
    return {
        kind: of_client.get(kind, UNLIMITED)
        for kinds in ((direction.cap, direction.limit) for direction in Direction)
        if any(of_client.get(kind) != of_network.get(kind) for kind in kinds)
        for kind in kinds
    }
