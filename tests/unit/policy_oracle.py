"""The policy once more, from the whole table at a time: what the incremental decisions must equal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import ONE_PROXY, Proxies
from mptcp_throttled.plan.shares import PlanSettings, Slots, plan_for
from mptcp_throttled.policy.clients import MAX_ADDRESSES, address_order, links
from mptcp_throttled.policy.decide import decide
from mptcp_throttled.policy.decisions import DecisionTable
from mptcp_throttled.policy.terms import terms_of
from mptcp_throttled.vocabulary.decision import Decision, Previous, Share
from mptcp_throttled.vocabulary.kernel_plan import KernelPlan
from mptcp_throttled.vocabulary.locator import Locators
from mptcp_throttled.vocabulary.terms import Facts, PresentTerms

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mptcp_throttle.model import AccessNetwork, Address, Connection, FourTuple


def decide_all(
    connections: Iterable[Connection],
    networks: Sequence[AccessNetwork],
    *,
    paused: bool = False,
    proxies: Proxies = ONE_PROXY,
) -> tuple[Decision, ...]:
    """The decision for every subflow of every connection."""
    connections = tuple(connections)
    locators = Locators(networks, proxies)
    clients = _group_clients(connections, locators)
    return tuple(
        decision
        for connection in connections
        for decision in decide(
            connection,
            locators.of(connection.port),
            lambda network, address: clients[network.name, network.client_prefix.first(address)][1],
            as_configured(networks),
            paused=paused,
        )
    )


def as_configured(networks: Iterable[AccessNetwork]) -> PresentTerms:
    """The terms of networks whose rates no rule changes."""
    return terms_of(networks, 0.0, Facts())


def decision_table(networks: Sequence[AccessNetwork], proxies: Proxies = ONE_PROXY) -> DecisionTable:
    """A table without connections for these networks."""
    table = DecisionTable(proxies=proxies)
    reconfigure(table, networks)
    return table


def reconfigure(
    table: DecisionTable,
    networks: Sequence[AccessNetwork],
    *,
    paused: bool = False,
    ports: Ports | None = None,
) -> Previous:
    """Let a table use these networks, whose rates no rule changes."""
    return table.reconfigure(networks, as_configured(networks), paused=paused, ports=ports)


def plan_of(
    decisions: Iterable[Decision], networks: Iterable[AccessNetwork], slots: Slots, settings: PlanSettings
) -> KernelPlan:
    """The plan for all of these decisions."""
    members: dict[Share, dict[FourTuple, Decision]] = {}
    for decision in decisions:
        if decision.downlink.share is not None:
            members.setdefault(decision.downlink.share, {})[decision.subflow.ends] = decision
    terms = as_configured(networks)
    rates = {share: rate for share in members if (rate := terms.rate(share)) is not None}
    return plan_for(members, rates, slots, settings)


_Member = tuple[str, "Address"]


def _group_clients(connections: Iterable[Connection], locators: Locators) -> dict[_Member, _Member]:
    """In each network, one address to stand for each client: union-find over the links of all connections."""
    parents: dict[_Member, _Member] = {}

    def root(address: _Member) -> _Member:
        while parents.setdefault(address, address) != address:
            address = parents[address]
        return address

    for connection in connections:
        locate = locators.of(connection.port)
        for subflow in connection.subflows:
            network = locate(subflow.ends.client.address)
            if network is not None:
                root((network.name, locate.client(subflow.ends.client.address)))
        for name, pair in links(connection, locate):
            older, newer = sorted(
                (root((name, address)) for address in pair), key=lambda member: address_order(member[1])
            )
            parents[newer] = older
    sizes = Counter(map(root, tuple(parents)))
    return {one: root(one) if sizes[root(one)] <= MAX_ADDRESSES else one for one in parents}
