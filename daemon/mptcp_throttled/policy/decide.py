"""Which subflow is held to which rate, and why: pure functions over the table and the access networks.

Invariant I2: a subflow is capped only while the same connection has a live, non-backup subflow on a more preferred
network. The most preferred live path of a connection is therefore never capped, and a lone path never is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from mptcp_throttle.model import AccessNetwork, Address, Connection, Per, Subflow, Token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mptcp_throttle.units import Rate

_KNOWN_ADDRESSES: Final = 65536


class Rule(StrEnum):
    """Which of a network's two rates holds a subflow."""

    CAP = "cap"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Share:
    """What shares one rate: `who` is empty (the network), a client's address, or a subflow's four-tuple."""

    network: str
    rule: Rule
    who: str


@dataclass(frozen=True, slots=True)
class Throttle:
    """A subflow is held to `rate`, together with all others of the same share."""

    share: Share
    rate: Rate


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done with one subflow; `held` None means it is left alone."""

    token: Token
    subflow: Subflow
    network: str | None
    held: Throttle | None
    reason: str


def decide(
    connections: Iterable[Connection], networks: Sequence[AccessNetwork], *, paused: bool = False
) -> tuple[Decision, ...]:
    """The decision of every subflow of every connection; while `paused`, nobody is held."""
    connections = tuple(connections)
    locate = Locator(networks)
    clients = _group_clients(connections, locate)
    return tuple(
        decision
        for connection in connections
        for decision in treat(connection, locate, clients.__getitem__, paused=paused)
    )


def treat(
    connection: Connection, locate: Locator, client_of: Callable[[Address], Address], *, paused: bool
) -> tuple[Decision, ...]:
    """The decision of every subflow of one connection; `client_of` gives the address that stands for a client."""
    networks = [locate(subflow.ends.client.address) for subflow in connection.subflows]
    located = tuple(zip(connection.subflows, networks, strict=True))
    live = [n for subflow, n in located if n is not None and not subflow.backup and not subflow.stalled]
    best = min(live, key=lambda network: network.preference, default=None)
    decisions = (_treat(connection.token, subflow, network, best, client_of) for subflow, network in located)
    return tuple(map(_released, decisions) if paused else decisions)


def _released(decision: Decision) -> Decision:
    return decision if decision.held is None else replace(decision, held=None, reason="paused by the operator")


class Locator:
    """Looks up the access network of an address, once per address."""

    def __init__(self, networks: Sequence[AccessNetwork]) -> None:
        self._networks = networks
        self._known: dict[Address, AccessNetwork | None] = {}

    def __call__(self, address: Address) -> AccessNetwork | None:
        """The network; None if the address is in none."""
        try:
            return self._known[address]
        except KeyError:
            if len(self._known) >= _KNOWN_ADDRESSES:
                self._known.clear()
            found = next((n for n in self._networks if any(address in subnet for subnet in n.subnets)), None)
            self._known[address] = found
            return found


def _treat(
    token: Token,
    subflow: Subflow,
    network: AccessNetwork | None,
    best: AccessNetwork | None,
    client_of: Callable[[Address], Address],
) -> Decision:
    """`best` is the most preferred network on which the connection has a live path."""
    if network is None:
        return Decision(token, subflow, None, None, "address is in no access network")
    preferred = best if best is not None and best.preference < network.preference else None
    if network.cap is not None and preferred is not None and not subflow.backup:
        rule, rate, reason = Rule.CAP, network.cap, _relieved_by(preferred.name)
        if network.limit is not None:
            rate = min(rate, network.limit)
    elif network.limit is not None:
        rule, rate, reason = Rule.LIMIT, network.limit, "limit of the network"
    else:
        return Decision(token, subflow, network.name, None, _why_free(subflow, network))
    held = _held(network.name, rule, _who(subflow, network.per, client_of), rate)
    return Decision(token, subflow, network.name, held, reason)


# Those who share a rate share the value that says so: there may be many of them.
@lru_cache(_KNOWN_ADDRESSES)
def _held(network: str, rule: Rule, who: str, rate: Rate) -> Throttle:
    return Throttle(Share(network, rule, who), rate)


@lru_cache
def _relieved_by(network: str) -> str:
    return f"{network} is live"


def _why_free(subflow: Subflow, network: AccessNetwork) -> str:
    if network.cap is None:
        return "network has no cap"
    if subflow.backup:
        return "backup subflow carries nothing to relieve"
    return "no live subflow on a more preferred network"


def _who(subflow: Subflow, per: Per, client_of: Callable[[Address], Address]) -> str:
    if per is Per.NETWORK:
        return ""
    if per is Per.CLIENT:
        return str(client_of(subflow.ends.client.address))
    return str(subflow.ends)


def _group_clients(connections: Iterable[Connection], located: Locator) -> dict[Address, Address]:
    """One address to stand for each client: a token joins the addresses it uses on the same network."""
    parents: dict[Address, Address] = {}

    def root(address: Address) -> Address:
        while parents.setdefault(address, address) != address:
            address = parents[address]
        return address

    for connection in connections:
        for subflow in connection.subflows:
            root(subflow.ends.client.address)
        for pair in links(connection, located):
            older, newer = sorted(map(root, pair), key=address_order)
            parents[newer] = older
    return {address: root(address) for address in parents}


def links(connection: Connection, located: Locator) -> Iterator[tuple[Address, Address]]:
    """The pairs of different addresses of which a connection tells that they are one client's."""
    first: dict[str, Address] = {}
    for subflow in connection.subflows:
        address = subflow.ends.client.address
        network = located(address)
        if network is not None and first.setdefault(network.name, address) != address:
            yield first[network.name], address


def address_order(address: Address) -> tuple[int, int]:
    """Of a client's addresses, the least in this order stands for it."""
    return address.version, int(address)
