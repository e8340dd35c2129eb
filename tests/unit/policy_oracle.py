"""The policy once more, from the whole table at a time: what the incremental decisions must equal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mptcp_throttled.policy.clients import MAX_ADDRESSES, address_order, links
from mptcp_throttled.policy.decide import decide
from mptcp_throttled.vocabulary.decision import Decision
from mptcp_throttled.vocabulary.locator import Locator

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mptcp_throttle.model import AccessNetwork, Address, Connection


def decide_all(
    connections: Iterable[Connection], networks: Sequence[AccessNetwork], *, paused: bool = False
) -> tuple[Decision, ...]:
    """The decision for every subflow of every connection."""
    connections = tuple(connections)
    locate = Locator(networks)
    clients = _group_clients(connections, locate)
    return tuple(
        decision
        for connection in connections
        for decision in decide(connection, locate, lambda address: clients[locate.prefix(address)], paused=paused)
    )


def _group_clients(connections: Iterable[Connection], locate: Locator) -> dict[Address, Address]:
    """One address to stand for each client: union-find over the links of all connections."""
    parents: dict[Address, Address] = {}

    def root(address: Address) -> Address:
        while parents.setdefault(address, address) != address:
            address = parents[address]
        return address

    for connection in connections:
        for subflow in connection.subflows:
            root(locate.prefix(subflow.ends.client.address))
        for pair in links(connection, locate):
            older, newer = sorted(map(root, pair), key=address_order)
            parents[newer] = older
    sizes = Counter(map(root, tuple(parents)))
    return {one: root(one) if sizes[root(one)] <= MAX_ADDRESSES else one for one in parents}
