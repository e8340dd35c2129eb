"""The JSON answer to `top`: access networks, their busiest clients, and the busiest subflows of these.

Its size depends on what is asked for, not on the number of connections. Its time depends on the number of subflows that
carry something; with a pattern, on the number of all subflows; sorted by name or subflows, on the number of clients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from heapq import nlargest, nsmallest
from itertools import islice
from typing import Final, NamedTuple

from mptcp_throttle.devices import named
from mptcp_throttle.errors import UserError, shown
from mptcp_throttle.model import Direction, FourTuple
from mptcp_throttle.rpc import Json
from mptcp_throttle.rpc.wire import MAX_TOP_CLIENTS, Order
from mptcp_throttled.answers.client_index import Client, ClientIndex
from mptcp_throttled.answers.status import describe_rates, describe_subflow, network_statuses, proxies
from mptcp_throttled.answers.subflow_counts import SubflowCounts
from mptcp_throttled.answers.view import View
from mptcp_throttled.vocabulary.snapshot import Snapshot

_SUBFLOWS_SHOWN: Final = 8


def requested_order(text: str) -> Order:
    """The order of that name. Raises UserError."""
    try:
        return Order(text)
    except ValueError as error:
        raise UserError(f"{shown(text)}: no such order; allowed: {', '.join(Order)}") from error


class IndexedClients(NamedTuple):
    """Indexes of a snapshot, so that an answer need not look at each subflow."""

    clients: ClientIndex
    counts: SubflowCounts


def busiest(view: View, indexed: IndexedClients, number: int, order: Order, pattern: str) -> Json:
    """The answer: each access network with its rates and up to `number` clients. `indexed` is of the view's snapshot.

    With a `pattern`, only subflows count that have it in their address, port, device, access network or state.
    """
    (index, counts), snapshot, enforcement = indexed, view.snapshot, view.enforcement
    clients = index.by_network if not pattern else _matching(index, snapshot, pattern.lower())
    by_subflow = index.by_subflow if not pattern else _by_subflow(clients)
    carrying = _carrying(enforcement.rates, by_subflow)
    sent = _sums(carrying)
    received = _sums(_carrying(enforcement.received_rates, by_subflow))
    statuses: list[Json] = network_statuses(view, counts)
    if clients.get(None):
        statuses.append(
            {"name": None, "sent_bps": 0, "received_bps": 0, "rates": describe_rates({}, {}, view.now), "per": None}
        )
    networks = []
    for status in statuses:
        of_network = clients.get(status["name"], {})
        chosen = _chosen(of_network, min(number, MAX_TOP_CLIENTS), order, sent, received)
        described = [
            {
                "client": client.name,
                "device": client.device,
                "sent_bps": round(8 * sent[client]),
                "received_bps": round(8 * received[client]),
                **_describe_client(client, carrying[client], view),
            }
            for client in chosen
        ]
        networks.append({**status, "clients": described, "more_clients": len(of_network) - len(chosen)})
    latest = enforcement.latest
    return {
        "observed_at": None if latest is None else view.now.in_epoch(latest.at),
        "connections": len(snapshot.connections),
        "paused": snapshot.operator.pause is not None,
        "sniffer_problem": snapshot.sniffer.problem,
        "errors": list(snapshot.errors),
        "proxies": None if view.fleet is None else proxies(view.fleet, view.now),
        "networks": networks,
    }


_Clients = Mapping[str | None, Mapping[str, Client]]


def _matching(index: ClientIndex, snapshot: Snapshot, pattern: str) -> _Clients:
    """The clients that have matching subflows, with these subflows only."""
    matching: dict[str | None, dict[str, Client]] = {}
    for network, clients in index.by_network.items():
        for client in clients.values():
            decisions = {
                ends: decision
                for ends, decision in client.decisions.items()
                if pattern in f"{named(str(ends.client), client.device)} {network} {snapshot.state_of(decision)}"
            }
            if decisions:
                matching.setdefault(network, {})[client.name] = replace(client, decisions=decisions)
    return matching


def _by_subflow(clients: _Clients) -> dict[FourTuple, Client]:
    return {
        ends: client for of_network in clients.values() for client in of_network.values() for ends in client.decisions
    }


_Carrying = defaultdict[Client, dict[FourTuple, float]]
"""By client, the subflows that carry something, and their bytes of payload per second."""


def _carrying(rates: Mapping[FourTuple, float], by_subflow: Mapping[FourTuple, Client]) -> _Carrying:
    carrying: _Carrying = defaultdict(dict)
    for ends, rate in rates.items():
        # Most of many subflows are idle, and to look one up takes longer than to pass over it.
        if rate and (client := by_subflow.get(ends)) is not None:
            carrying[client][ends] = rate
    return carrying


def _sums(carrying: _Carrying) -> defaultdict[Client, float]:
    """By client, in bytes of payload per second."""
    return defaultdict(float, {client: sum(rates.values()) for client, rates in carrying.items()})


def _chosen(
    clients: Mapping[str, Client],
    number: int,
    order: Order,
    sent: Mapping[Client, float],
    received: Mapping[Client, float],
) -> list[Client]:
    """The first `number` of a network's clients."""
    match order:
        case Order.NAME:
            return nsmallest(number, clients.values(), key=lambda client: client.device or client.name)
        case Order.SUBFLOWS:
            return nlargest(number, clients.values(), key=lambda client: len(client.decisions))
    sums = sent if order is Order.SENT else received
    busy = nlargest(number, (client for client in sums if clients.get(client.name) is client), key=sums.__getitem__)
    idle = (client for client in clients.values() if client not in sums)
    return [*busy, *islice(idle, number - len(busy))]


def _describe_client(client: Client, rates: Mapping[FourTuple, float], view: View) -> Json:
    """A client in the answer. `rates` are those of its subflows that are sent something, in bytes per second.

    `rate_bps` is the rate that its throttled subflows share, `throttled_bps` the rate at which they are sent data.
    """
    snapshot = view.snapshot
    downlinks = ((ends, snapshot.throttle(Direction.DOWNLINK, ends)) for ends in client.decisions)
    throttles = {ends: throttle for ends, throttle in downlinks if throttle is not None}
    shares = {throttle.share: throttle.rate for throttle in throttles.values()}
    busy = nlargest(_SUBFLOWS_SHOWN, rates, key=rates.__getitem__)
    idle = (ends for ends in client.decisions if ends not in rates)
    chosen = [client.decisions[ends] for ends in (*busy, *islice(idle, _SUBFLOWS_SHOWN - len(busy)))]
    return {
        "throttled_bps": round(8 * sum(rate for ends, rate in rates.items() if ends in throttles)),
        "rate_bps": sum(rate.bits_per_second for rate in shares.values()) or None,
        "throttled_subflows": len(throttles),
        "subflows": [{"state": snapshot.state_of(decision), **describe_subflow(decision, view)} for decision in chosen],
        "more_subflows": len(client.decisions) - len(chosen),
    }
