"""The answer to `explain`: the rates of a client on each access network, and which rules have made them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple, Self

from mptcp_throttle.devices import shown_prefix
from mptcp_throttle.errors import UserError
from mptcp_throttle.model import AccessNetwork, Address, Direction, RateKind
from mptcp_throttle.proxies import ONE_PROXY, Proxies
from mptcp_throttle.rpc import Json
from mptcp_throttle.units import Rate
from mptcp_throttled.accounting.budget_account import BudgetUse
from mptcp_throttled.answers.budgets import describe_use
from mptcp_throttled.answers.status import describe_term, zone_name
from mptcp_throttled.answers.view import View
from mptcp_throttled.control.requests import requested_network
from mptcp_throttled.policy.terms import rule_input, steps
from mptcp_throttled.vocabulary.decision import Decision
from mptcp_throttled.vocabulary.fleet import WHOLE, RateKey
from mptcp_throttled.vocabulary.locator import Locator, Locators
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import UNLIMITED, Terms

UsesOf = Callable[[str, Address], Iterable[BudgetUse]]


class _Asked(NamedTuple):
    """The client that is asked about: a device by its name, or an address that no device has."""

    device: str | None
    address: Address | None

    @classmethod
    def of(cls, client: Address | str, locators: Locators) -> Self:
        if isinstance(client, str):
            return cls(client, None)
        return cls(next(filter(None, (locate.device(client) for locate in locators.each)), None), client)

    def has(self, address: Address, locate: Locator) -> bool:
        """Whether it has this address."""
        if self.device is not None or self.address is None:
            return locate.device(address) == self.device
        return locate.client(address) == locate.client(self.address)

    def first(self, network: AccessNetwork) -> Address | None:
        """Its first address, as one of the clients of a network; None: it has no address there."""
        if self.device is not None:
            client = network.devices.by_name.get(self.device)
            return None if client is None else client.first
        return None if self.address is None else network.client(self.address)


def explain(
    view: View,
    client: Address | str,
    network: str | None,
    proxies: Proxies = ONE_PROXY,
    uses: UsesOf = lambda _network, _client: (),
) -> Json:
    """The rates of a client on `network`; None: on each network that it uses, or has an address in.

    `client` is one of its addresses, or the name of its device. `uses` gives the budgets that count what a client
    carries on a network. Raises UserError if there is no such network, or if the client has no address in it.
    """
    snapshot = view.snapshot
    locators = Locators(snapshot.networks, proxies)
    asked = _Asked.of(client, locators)
    by_network = _decisions_by_network(snapshot, asked, locators)
    for each in snapshot.networks:
        if asked.device in each.devices.by_name:
            by_network.setdefault(each.name, [])
    for own in (None if asked.address is None else locate(asked.address) for locate in locators.each):
        if own is not None:
            by_network.setdefault(own.name, [])
    if network is not None:
        requested_network(network, snapshot.networks)
    chosen = [each for each in snapshot.networks if each.name in by_network and network in (None, each.name)]
    if not chosen:
        where = "any access network" if network is None else network
        raise UserError(f"{client}: not in {where}, and no connection of it is known there")
    return {
        "client": str(client),
        "device": asked.device,
        "time_zone": zone_name(snapshot.facts.wall_clock.zone),
        "paused": snapshot.operator.pause is not None,
        "networks": [_of_network(view, each, asked, by_network[each.name], uses) for each in chosen],
    }


def _decisions_by_network(snapshot: Snapshot, asked: _Asked, locators: Locators) -> dict[str, list[Decision]]:
    """The decisions for all subflows of the connections in which the client has an address."""
    by_network: dict[str, list[Decision]] = {}
    for token, decisions in snapshot.decisions.items():
        locate = locators.of(snapshot.connections[token].port)
        if any(asked.has(decision.subflow.ends.client.address, locate) for decision in decisions):
            for decision in decisions:
                if decision.network is not None:
                    by_network.setdefault(decision.network, []).append(decision)
    return by_network


def _of_network(view: View, network: AccessNetwork, asked: _Asked, decisions: Iterable[Decision], uses: UsesOf) -> Json:
    addresses = {network.client(decision.subflow.ends.client.address) for decision in decisions}
    own = asked.first(network)
    # A client's own rates are those of one of its addresses.
    first = own if own is not None and (own in addresses or not addresses) else min(addresses, key=int)
    terms = view.snapshot.terms
    if (network.name, first) not in terms.by_client:
        # An overflow or a lease is for all addresses of the client together.
        joined = (d.client for d in decisions if d.network == network.name and d.client is not None)
        first = next((each for each in joined if terms.is_of_all_addresses((network.name, each))), first)
    made = steps(rule_input(network, first, view.now.monotonic, view.snapshot.facts))
    return {
        "name": network.name,
        "prefixes": [shown_prefix(prefix) for prefix in network.prefixes(first)],
        **{
            direction: {
                "fleet_part": _fleet_part(view, network, RateKey(network.name, first, direction)),
                **_of_direction(view, direction, decisions, made),
            }
            for direction in Direction
        },
        "budgets": [describe_use(use, view.snapshot, view.proxy) for use in uses(network.name, first)],
    }


def _fleet_part(view: View, network: AccessNetwork, key: RateKey) -> float | None:
    """What this proxy has of a client's rates in a direction, as a fraction of 1; None: these are not shared."""
    shared = view.snapshot.facts.shared
    return None if shared is None or not network.shared else round(shared.held(key) / WHOLE, 6)


def _of_direction(view: View, direction: Direction, decisions: Iterable[Decision], made: list[Terms]) -> Json:
    snapshot = view.snapshot
    states: Counter[tuple[str | None, Rate | None, str]] = Counter()
    for decision in decisions:
        throttle = snapshot.throttle(direction, decision.subflow.ends)
        kind, rate = (None, None) if throttle is None else (throttle.share.kind.word, throttle.rate)
        states[kind, rate, snapshot.reason(direction, decision)] += 1
    return {
        "subflows": [
            {"number": number, "kind": kind, **_rate_and_burst(rate), "reason": reason}
            for (kind, rate, reason), number in states.items()
        ],
        **{kind.word: _steps(view, made, kind) for kind in (direction.cap, direction.limit)},
    }


def _rate_and_burst(rate: Rate | None) -> Json:
    if rate is None or not rate.burst:
        return {"rate": None if rate is None else str(rate), "burst_bytes": None, "burst_seconds": None}
    return {"rate": str(rate), "burst_bytes": rate.burst, "burst_seconds": round(rate.burst / rate.bytes_per_second, 3)}


def _steps(view: View, made: Iterable[Terms], kind: RateKind) -> list[Json]:
    """The configured rate, and the rate after each rule that has changed it."""
    by_rule = {term.rule: term for term in (terms.get(kind, UNLIMITED) for terms in made)}
    return [describe_term(term, view.now) for term in by_rule.values()]
