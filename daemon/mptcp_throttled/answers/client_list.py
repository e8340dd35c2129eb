"""The JSON answer to `clients`: clients over all access networks, sorted, searched and filtered.

Its time depends on the number of clients and on that of the subflows that carry something.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_throttle.errors import UserError, shown
from mptcp_throttle.model import Direction, RateKind
from mptcp_throttle.rpc.wire import MAX_LISTED_CLIENTS, ClientOrder
from mptcp_throttled.answers.joined_clients import JoinedClient, JoinedClients, Owner, Path
from mptcp_throttled.answers.status import direction_status
from mptcp_throttled.vocabulary.terms import RuleName

if TYPE_CHECKING:
    from collections.abc import Callable

    from mptcp_throttle.model import FourTuple
    from mptcp_throttle.rpc import Json
    from mptcp_throttled.answers.view import View
    from mptcp_throttled.observing.enforcement import Enforcement
    from mptcp_throttled.vocabulary.decision import Decision
    from mptcp_throttled.vocabulary.snapshot import Snapshot

_FREE: Final = "free"
_RULES: Final = (*RuleName, _FREE)


class Wanted(NamedTuple):
    """Which clients are asked for: up to `number` from place `start` on, in an order.

    Only those with `search` in their name or one of their addresses, with a subflow on `network`, and with a downlink
    that `rule` has decided. An empty text chooses all.
    """

    number: int
    start: int
    order: ClientOrder
    search: str = ""
    network: str = ""
    rule: str = ""

    @classmethod
    def of(cls, number: Json, start: Json, order: Json, search: Json, network: Json, rule: Json) -> Wanted:
        """From the arguments of `clients`. Raises UserError naming the argument, its value and what is allowed."""
        for name, value in (("number", number), ("start", start)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise UserError(f"{name}: {shown(value)}: allowed: a whole number from 0 on")
        for name, value in (("search", search), ("network", network), ("rule", rule)):
            if not isinstance(value, str):
                raise UserError(f"{name}: {shown(value)}: allowed: text")
        if order not in list(ClientOrder):
            raise UserError(f"order: {shown(order)}: allowed: {', '.join(ClientOrder)}")
        if rule not in ("", *_RULES):
            raise UserError(f"rule: {shown(rule)}: allowed: {', '.join(_RULES)}, or nothing")
        return cls(min(number, MAX_LISTED_CLIENTS), start, ClientOrder(order), search.lower(), network, rule)


Sums = Mapping[JoinedClient, int]
"""By client: bits of payload per second, or milliseconds."""

_MAX_KEPT: Final = 16
"""The most lists of clients that are kept, one for each order and filter: 80 kB each with 10 000 clients."""


class ClientList:
    """The clients of the latest snapshot, and what they carried at the latest observation. For one thread.

    `held` gives by name of an account of the history for how many milliseconds its data waited in the last ten minutes.
    """

    def __init__(self, held: Callable[[], Mapping[str, int]]) -> None:
        self.clients = JoinedClients()
        self._held = held
        self._seen: tuple[Enforcement | None, Snapshot | None] = None, None
        self._figures: dict[ClientOrder, Sums] = {}
        self._ordered: dict[Wanted, list[JoinedClient]] = {}

    def answer(self, view: View, wanted: Wanted) -> Json:
        """The answer to `clients`."""
        clients, latest = self.clients, view.enforcement.latest
        clients.update(view.snapshot)
        self._forget_outdated(view)
        ordered = self._in_order(view, wanted) if wanted.number or any(wanted[3:]) else None
        chosen = [] if ordered is None else ordered[wanted.start : wanted.start + wanted.number]
        held = self._figure(ClientOrder.HELD, view) if chosen else {}
        return {
            "observed_at": None if latest is None else view.now.in_epoch(latest.at),
            "total": len(clients.by_name),
            "on_networks": [
                {"name": name, "clients": clients.on_network[name]}
                for name in sorted(clients.on_network, key=lambda name: name or "")
                if clients.on_network[name]
            ],
            "matching": len(clients.by_name if ordered is None else ordered),
            "start": wanted.start,
            "clients": [describe_client(client, view, held.get(client, 0)) for client in chosen],
        }

    def describe(self, client: JoinedClient, view: View) -> Json:
        """A client as in the answer."""
        self._forget_outdated(view)
        return describe_client(client, view, self._figure(ClientOrder.HELD, view).get(client, 0))

    def cap_of(self, name: str, view: View) -> dict[str, Json]:
        """What holds back the client of an account of the history: its cap on the least preferred network.

        `name` is that of the account.
        """
        self.clients.update(view.snapshot)
        client = self.clients.find(name)
        parts = [] if client is None else describe_client(client, view, 0)["networks"]
        capped = [part for part in parts if part["kind"] == RateKind.CAP.word]
        part: Json = capped[-1] if capped else {}
        return {"network": part.get("name"), **{key: part.get(key) for key in ("rate_bps", "rule", "reason", "until")}}

    def _forget_outdated(self, view: View) -> None:
        """Forget what was computed for an earlier observation or snapshot: viewers of the page share it."""
        enforcement, snapshot = self._seen
        if enforcement is not view.enforcement or snapshot is not view.snapshot:
            self._seen = view.enforcement, view.snapshot
            self._figures.clear()
            self._ordered.clear()

    def _in_order(self, view: View, wanted: Wanted) -> list[JoinedClient]:
        """All clients that match, in order; `wanted.start` and `number` do not matter."""
        key = wanted._replace(number=0, start=0)
        ordered = self._ordered.get(key)
        if ordered is None:
            if len(self._ordered) >= _MAX_KEPT:
                self._ordered.clear()
            matching = _matching(self.clients, view.snapshot, wanted)
            ordered = self._ordered[key] = _sorted(matching, wanted.order, lambda order: self._figure(order, view))
        return ordered

    def _figure(self, order: ClientOrder, view: View) -> Sums:
        """By client, the figure that an order sorts by."""
        figure = self._figures.get(order)
        if figure is None:
            match order:
                case ClientOrder.SENT:
                    figure = _carried(view.enforcement.rates, self.clients)
                case ClientOrder.RECEIVED:
                    figure = _carried(view.enforcement.received_rates, self.clients)
                case _:
                    figure = waiting(self.clients, self._held())
            self._figures[order] = figure
        return figure


def waiting(clients: JoinedClients, held: Mapping[str, int]) -> dict[JoinedClient, int]:
    """By client, for how many milliseconds data waited; `held` has it by the name of an account of the history."""
    waited: dict[JoinedClient, int] = {}
    for name, milliseconds in held.items():
        client = clients.find(name)
        if client is not None:
            waited[client] = waited.get(client, 0) + milliseconds
    return waited


def _carried(rates: Mapping[FourTuple, float], clients: JoinedClients) -> Sums:
    by_owner: defaultdict[Owner, float] = defaultdict(float)
    owners = clients.owners
    for ends, rate in rates.items():
        # Most of many subflows are idle, and to look one up takes longer than to pass over it.
        if rate and (owner := owners.get(ends)) is not None:
            by_owner[owner] += rate
    sums: defaultdict[JoinedClient, float] = defaultdict(float)
    for owner, rate in by_owner.items():
        sums[owner.client] += 8 * rate
    return {client: round(rate) for client, rate in sums.items()}


def _matching(clients: JoinedClients, snapshot: Snapshot, wanted: Wanted) -> list[JoinedClient]:
    every = clients.by_name.values()
    return [client for client in every if _matches(client, snapshot, wanted)] if any(wanted[3:]) else [*every]


def _matches(client: JoinedClient, snapshot: Snapshot, wanted: Wanted) -> bool:
    if wanted.search and all(wanted.search not in owner.text for owner in client.owners):
        return False
    if wanted.network and all(path.network != wanted.network for path in client.paths()):
        return False
    return not wanted.rule or any(_rule(decision, snapshot) == wanted.rule for decision in client.decisions())


def _rule(decision: Decision, snapshot: Snapshot) -> str:
    """What has decided the downlink of a subflow."""
    is_free = decision.downlink.share is None
    throttle = None if is_free else snapshot.throttle(Direction.DOWNLINK, decision.subflow.ends)
    return _FREE if throttle is None else snapshot.terms.term(throttle.share).rule


def _sorted(
    matching: list[JoinedClient], order: ClientOrder, figure: Callable[[ClientOrder], Sums]
) -> list[JoinedClient]:
    match order:
        case ClientOrder.NAME:
            return sorted(matching, key=lambda client: client.name)
        case ClientOrder.SUBFLOWS:
            return sorted(matching, key=lambda client: client.subflows, reverse=True)
    of_client = figure(order)
    busy = [client for client in matching if client in of_client]
    busy.sort(key=of_client.__getitem__, reverse=True)
    return [*busy, *(client for client in matching if client not in of_client)]


def describe_client(client: JoinedClient, view: View, held_back_ms: int) -> Json:
    """A client in the answer to `clients`."""
    by_path: dict[Path, list[Decision]] = {}
    for decision, path in zip(client.decisions(), client.paths(), strict=True):
        by_path.setdefault(path, []).append(decision)
    parts: list[Json] = [
        {"name": path.network, "client": path.address, **_describe_part(of_path, view)}
        for path, of_path in sorted(by_path.items(), key=lambda item: item[0].preference)
    ]
    throttled = view.snapshot.throttled
    return {
        "client": parts[0]["client"],
        "device": client.device,
        "sent_bps": sum(part["sent_bps"] for part in parts),
        "received_bps": sum(part["received_bps"] for part in parts),
        "connections": client.connections,
        "subflows": sum(part["subflows"] for part in parts),
        "throttled_subflows": sum(decision.subflow.ends in throttled for decision in client.decisions()),
        "held_back_ms": held_back_ms,
        "networks": parts,
    }


def _describe_part(decisions: Sequence[Decision], view: View) -> dict[str, Json]:
    """A client on one network. The rate shown is that of its busiest throttled subflow, or of its busiest one."""
    throttled, sent, received = view.snapshot.throttled, view.enforcement.rates, view.enforcement.received_rates
    ends = [decision.subflow.ends for decision in decisions]
    representative = decisions[0]
    if len(decisions) > 1:
        busiest = [(each in throttled, sent.get(each, 0.0)) for each in ends]
        representative = decisions[busiest.index(max(busiest))]
    return {
        "subflows": len(ends),
        "sent_bps": round(8 * sum([sent.get(each, 0.0) for each in ends])),
        "received_bps": round(8 * sum([received.get(each, 0.0) for each in ends])),
        **direction_status(Direction.DOWNLINK, representative, view),
    }
