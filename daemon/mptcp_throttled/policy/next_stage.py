"""What will apply when the next stage of a budget is reached: kernel programs begin to apply it by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mptcp_throttle.model import AccessNetwork, RateKind
from mptcp_throttle.proxies import Proxies
from mptcp_throttle.units import Rate
from mptcp_throttled.policy.client_networks import ClientNetworks
from mptcp_throttled.policy.terms import terms_of_subject
from mptcp_throttled.vocabulary.allowances import Allowance, AllowanceKey, StageAhead, SubnetAllowances
from mptcp_throttled.vocabulary.budgets import Reached
from mptcp_throttled.vocabulary.terms import ClientKey, Facts, Terms


def allowances(
    networks: Sequence[AccessNetwork], stages_ahead: Iterable[StageAhead], now: float, facts: Facts
) -> list[Allowance]:
    """For each stage ahead, the allowance: what is left until it, and the rates if it were reached at `now`.

    `now` is in monotonic seconds.
    """
    by_name = {network.name: network for network in networks}
    made = []
    for ahead in stages_ahead:
        if ahead.network not in by_name:  # a reload has removed it, which the ledger does not know yet
            continue
        terms = terms_of_subject(by_name[ahead.network], ahead.subject, now, _with_stage(facts, ahead))
        made.append(Allowance(ahead, _rate(terms, RateKind.CAP), _rate(terms, RateKind.LIMIT)))
    return made


def _with_stage(facts: Facts, ahead: StageAhead) -> Facts:
    of_network = facts.spent.get(ahead.network, {})
    reached = Reached(ahead.budget, ahead.stage + 1, None)
    # The terms of a subject depend on no other subject's budgets, and thousands may be spent.
    concerned = {None: of_network.get(None, ()), ahead.subject: (*of_network.get(ahead.subject, ()), reached)}
    return facts._replace(spent={ahead.network: concerned})


def _rate(terms: Terms, kind: RateKind) -> Rate | None:
    return terms[kind].rate if kind in terms else None


def subnet_allowances(
    networks: Sequence[AccessNetwork], made: Mapping[AllowanceKey, Allowance], proxies: Proxies
) -> list[SubnetAllowances]:
    """By which subnets subflows find their allowances; the longest prefix counts. Clients come after their networks."""
    if not made:
        return []

    def of_network(network: AccessNetwork) -> AllowanceKey | None:
        key = AllowanceKey(network.name, None)
        return key if key in made else None

    has_own = any(key.subject is None for key in made)
    by_name = {network.name: network for network in networks}
    # After a reload, what was the first address of a client may be in the prefix of another client.
    clients: dict[ClientKey, Terms] = {
        (key.network, key.subject): {}
        for key in made
        if key.subject is not None and by_name[key.network].client(key.subject) == key.subject
    }
    rows = [SubnetAllowances(network, None, of_network(network)) for network in networks if has_own]
    for network in ClientNetworks(proxies).of(networks, clients):
        if not network.subnets:  # its addresses are in another network now
            continue
        key = AllowanceKey(network.name, network.client(network.subnets[0].network_address))
        rows.append(SubnetAllowances(network, key, of_network(network)))
    return rows
