"""The terms of access networks: the configured rates, after all rules. Pure functions.

To add a rule:

1. Write `policy/rules/NAME.py` with `apply(terms, given) -> Terms`. It returns the terms with a
   `Term(rate, reason, next_change, rule)` in place of each that it changes, and knows neither kernel nor other rules.
   Its name is in `RuleName`.
2. `reason` is a few words for the operator (`by hand`). `next_change` is when `apply` will say something else although
   no fact changes: the loop computes all terms again then. Without a `next_change` a rule must depend on facts alone.
3. Name it in `RULES`. A later rule sees what earlier ones made of the rates; `override` is last, since what is set by
   hand replaces everything.
4. If the terms of single clients may differ from their network's, let `_named` name these clients. There may be
   thousands: a rule does for each only what concerns it alone.
5. If the rule is configured, add its keys to `NetworkFile` (`config/schema.py`), a field to `AccessNetwork`
   (`model.py`) that `config/load.py` fills, and a comment to the shipped network file. If it looks at anything else,
   such as traffic, add that to `Facts`.

Decisions, plan, uplinks, the log, `status` and metrics take the rates from the terms: none of them knows the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final

from mptcp_throttle.model import AccessNetwork, Address, Direction, RateKind
from mptcp_throttle.proxies import ONE_PROXY, Proxies
from mptcp_throttle.schedule import next_change, window_at
from mptcp_throttle.units import Rate
from mptcp_throttled.policy.client_networks import client_networks
from mptcp_throttled.policy.rules import budget, device, overflow, override, schedule
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

RULES: Final[tuple[Rule, ...]] = (schedule.apply, device.apply, overflow.apply, budget.apply, override.apply)


def rule_input(network: AccessNetwork, client: Address | None, now: float, facts: Facts) -> RuleInput:
    """What rules are given for a client of a network, by its first address, None being any, at `now`."""
    return RuleInput(network, client, now, facts, _present_window(network, now, facts.wall_clock))


def _present_window(network: AccessNetwork, now: float, wall_clock: WallClock) -> PresentWindow:
    schedule, (offset, zone) = network.schedule, wall_clock
    if not schedule:
        return PresentWindow()
    change = next_change(schedule, now + offset, zone)
    return PresentWindow(window_at(schedule, now + offset, zone), None if change is None else change - offset)


def steps(given: RuleInput) -> list[Terms]:
    """The configured rates, and after each rule what it has made of those before: the last are the terms."""
    made: list[Terms] = [{kind: Term(rate) for kind, rate in given.network.rates.items()}]
    for rule in RULES:
        made.append(rule(made[-1], given))
    return made


def terms_of(networks: Iterable[AccessNetwork], now: float, facts: Facts) -> PresentTerms:
    """The terms of all networks, and of the clients whose terms differ from their network's."""
    by_network: dict[str, Terms] = {}
    by_client: dict[ClientKey, Terms] = {}
    for network in networks:
        # What is set by hand for a client concerns no other.
        by_hand, of_network = _of_clients(network, facts.overrides), _of_network(network, facts.overrides)
        given = rule_input(network, None, now, facts._replace(overrides=of_network))
        present = by_network[network.name] = steps(given)[-1]
        named = _named(network, by_hand, facts)
        for client in named:
            its_facts = given.facts
            if client in by_hand:
                its_facts = its_facts._replace(overrides=(*of_network, *by_hand[client]))
            own = _own(steps(given._replace(client=client, facts=its_facts))[-1], present)
            if own:
                by_client[network.name, client] = own
        for client, own in _of_other_devices(given, named, present):
            by_client[network.name, client] = own
    return PresentTerms(by_network, by_client)


def _of_other_devices(
    given: RuleInput, named: Container[Address], of_network: Terms
) -> Iterator[tuple[Address, Terms]]:
    """The terms of the devices with own rates that are not `named`: the same for all with the same rates.

    Facts may change several times a second, while there are thousands of devices.
    """
    by_rates: dict[tuple[tuple[RateKind, Rate | None], ...], Terms] = {}
    for client in given.network.devices.clients:
        if client.rates and client.first not in named:
            rates = tuple(client.rates.items())
            if rates not in by_rates:
                by_rates[rates] = _own(steps(given._replace(client=client.first))[-1], of_network)
            if by_rates[rates]:
                yield client.first, by_rates[rates]


def _named(network: AccessNetwork, by_hand: Iterable[Address], facts: Facts) -> dict[Address, None]:
    """The first addresses of the clients of a network of which facts say something that is not so of all."""
    counted = (*facts.spent.get(network.name, ()), *facts.lacking.get(network.name, ()))
    return dict.fromkeys((*by_hand, *(network.client(each) for each in counted if each is not None)))


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
    """Of each direction in which a client's terms differ from its network's, both kinds: a limit bounds its cap."""
    return {
        kind: of_client.get(kind, UNLIMITED)
        for kinds in ((direction.cap, direction.limit) for direction in Direction)
        if any(of_client.get(kind) != of_network.get(kind) for kind in kinds)
        for kind in kinds
    }


class CurrentTerms:
    """The terms of the `configured` networks, as the same values until they change: readers compare identities, since
    to compare thousands of subnets takes long. `effective` are the networks with the rates of the terms, and behind
    them each client with terms of its own, as a network."""

    def __init__(self, proxies: Proxies = ONE_PROXY) -> None:
        self._proxies = proxies
        self.configured: tuple[AccessNetwork, ...] = ()
        self.effective: tuple[AccessNetwork, ...] = ()
        self.terms = PresentTerms()
        self._inputs: tuple[tuple[AccessNetwork, ...], Facts] = (), Facts()

    def update(self, configured: tuple[AccessNetwork, ...], now: float, facts: Facts) -> PresentTerms:
        """The terms now. They are computed again if networks or facts have changed, or their next change is due."""
        next_change = self.terms.next_change
        is_due = next_change is not None and next_change <= now
        networks_before, facts_before = self._inputs
        if configured is networks_before and facts == facts_before and not is_due:
            return self.terms
        self._inputs = configured, facts
        if configured != self.configured:
            self.configured = configured
        terms = terms_of(configured, now, facts)
        if terms != self.terms:
            self.terms = terms
        networks = tuple(
            network.with_rates({kind: term.rate for kind, term in terms.by_network[network.name].items()})
            for network in configured
        )
        effective = (*networks, *client_networks(networks, terms.by_client, self._proxies))
        if effective != self.effective:
            self.effective = effective
        return self.terms
