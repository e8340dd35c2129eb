"""The JSON answer to `top`: access networks, their busiest clients, and the busiest subflows of these.

Its size depends on what is asked for, not on the number of connections.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import nlargest
from typing import Final

from mptcp_throttle.errors import UserError, shown
from mptcp_throttle.model import FourTuple
from mptcp_throttle.rpc import Json
from mptcp_throttled.clock import Now
from mptcp_throttled.enforcement import Enforcement
from mptcp_throttled.policy.decide import Decision, Locator
from mptcp_throttled.state import Snapshot
from mptcp_throttled.status import Observed, describe_subflow, network_statuses

MAX_CLIENTS: Final = 1000
_SUBFLOWS_SHOWN: Final = 8


class Order(StrEnum):
    """What clients are sorted by, the largest first; by name, the smallest."""

    SENT = "sent"
    RECEIVED = "received"
    SUBFLOWS = "subflows"
    NAME = "name"


@dataclass(slots=True)
class _Client:
    """A client in one access network; rates in bytes of payload per second."""

    name: str
    sent: float = 0.0
    received: float = 0.0
    decisions: list[Decision] = field(default_factory=list)


def requested_order(text: str) -> Order:
    """The order of that name. Raises UserError."""
    try:
        return Order(text)
    except ValueError as error:
        raise UserError(f"{shown(text)}: no such order; allowed: {', '.join(Order)}") from error


def busiest(snapshot: Snapshot, observed: Observed, number: int, order: Order, pattern: str, now: Now) -> Json:
    """The answer: of each access network its rates and up to `number` clients.

    With a `pattern`, only of subflows that have it in their address, port, access network or state.
    """
    by_network = _clients(snapshot, observed.enforcement, pattern.lower())
    differing = observed.enforcement.not_enforced
    statuses: list[Json] = network_statuses(snapshot, observed, now)
    if None in by_network:
        statuses.append({"name": None, "sent_bps": 0, "received_bps": 0, "cap": None, "limit": None, "per": None})
    networks = []
    for status in statuses:
        clients = by_network.get(status["name"], {})
        selected = _selected(clients.values(), min(number, MAX_CLIENTS), order)
        described = [_describe_client(client, snapshot, observed.enforcement, differing, now) for client in selected]
        networks.append({**status, "clients": described, "more_clients": len(clients) - len(selected)})
    latest = observed.enforcement.latest
    return {
        "observed_at": None if latest is None else now.in_epoch(latest.at),
        "connections": len(snapshot.connections),
        "paused": snapshot.operator.pause is not None,
        "sniffer_problem": snapshot.sniffer.problem,
        "errors": list(snapshot.errors),
        "networks": networks,
    }


def state_of(decision: Decision, snapshot: Snapshot) -> str:
    """In a word what a subflow is: `cap`, `limit`, `backup` or `free`."""
    throttled = snapshot.throttled.get(decision.subflow.ends)
    throttle = None if throttled is None else throttled.decision.throttle
    if throttle is not None:
        return throttle.share.kind
    return "backup" if decision.subflow.backup else "free"


def _clients(snapshot: Snapshot, enforcement: Enforcement, pattern: str) -> dict[str | None, dict[str, _Client]]:
    """The clients by name, by access network."""
    locator = Locator(snapshot.networks)
    names: dict[object, str] = {}
    found: dict[str | None, dict[str, _Client]] = defaultdict(dict)
    sent, received = enforcement.rates, enforcement.received_rates
    for decision in _matching(snapshot, pattern):
        ends = decision.subflow.ends
        address = ends.client.address
        name = names.get(address)
        if name is None:
            name = names[address] = str(locator.prefix(address))
        of_network = found[decision.network]
        client = of_network.get(name)
        if client is None:
            client = of_network[name] = _Client(name)
        client.sent += sent.get(ends, 0.0)
        client.received += received.get(ends, 0.0)
        client.decisions.append(decision)
    return found


def _matching(snapshot: Snapshot, pattern: str) -> Iterator[Decision]:
    for of in snapshot.decisions.values():
        for decision in of:
            if not pattern or pattern in _searched(decision, snapshot):
                yield decision


def _searched(decision: Decision, snapshot: Snapshot) -> str:
    return f"{decision.subflow.ends.client} {decision.network} {state_of(decision, snapshot)}"


def _selected(clients: Iterable[_Client], number: int, order: Order) -> list[_Client]:
    if order is Order.NAME:
        return sorted(clients, key=lambda client: client.name)[:number]
    keys: dict[Order, Callable[[_Client], float]] = {
        Order.SENT: lambda client: client.sent,
        Order.RECEIVED: lambda client: client.received,
        Order.SUBFLOWS: lambda client: len(client.decisions),
    }
    return nlargest(number, clients, key=keys[order])


def _describe_client(
    client: _Client, snapshot: Snapshot, enforcement: Enforcement, differing: Mapping[FourTuple, str], now: Now
) -> Json:
    """`rate_bps` is the rate that its throttled subflows share, `throttled_bps` what they are sent."""
    throttled = [d for d in client.decisions if d.subflow.ends in snapshot.throttled]
    shares = {
        throttle.share: throttle.rate
        for decision in throttled
        if (throttle := snapshot.throttled[decision.subflow.ends].decision.throttle) is not None
    }
    busy = nlargest(_SUBFLOWS_SHOWN, client.decisions, key=lambda d: enforcement.rates.get(d.subflow.ends, 0.0))
    return {
        "client": client.name,
        "sent_bps": round(8 * client.sent),
        "received_bps": round(8 * client.received),
        "throttled_bps": round(8 * sum(enforcement.rates.get(d.subflow.ends, 0.0) for d in throttled)),
        "rate_bps": sum(rate.bits_per_second for rate in shares.values()) or None,
        "throttled": len(throttled),
        "subflows": [
            {"state": state_of(d, snapshot), **describe_subflow(d, snapshot, enforcement, differing, now)} for d in busy
        ],
        "more_subflows": len(client.decisions) - len(busy),
    }
