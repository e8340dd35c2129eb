"""What a browser can ask for besides the stream of events: its parameters, and what the daemon is asked for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final, NamedTuple

from mptcp_throttle.rpc import Json
from mptcp_throttle.rpc.wire import MAX_LISTED_CLIENTS, ClientOrder
from mptcp_throttle_web.hiding import Hider
from mptcp_throttle_web.refusal import Refused

Ask = Callable[..., Json]
"""Calls a method of the daemon with parameters, in any thread. Raises RpcError."""

MAX_ROWS: Final = 200
_MAX_TEXT: Final = 100
# The ranges of the page. An answer to another range would not be shared by viewers.
_RANGES: Final = {str(seconds): seconds for seconds in (600, 3600, 86_400, 60 * 86_400)}
_LATEST: Final = 253402300799  # the end of the year 9999


@dataclass(frozen=True, slots=True)
class Question:
    """The parameters of a request, and who asks: `sees_addresses` is false for strangers."""

    parameters: Mapping[str, str]
    sees_addresses: bool
    hider: Hider

    def text(self, key: str) -> str:
        """A parameter; empty if it is absent. Raises Refused if it is too long."""
        value = self.parameters.get(key, "")
        if len(value) > _MAX_TEXT:
            raise Refused(HTTPStatus.BAD_REQUEST, f"{key}: allowed: up to {_MAX_TEXT} characters")
        return value

    def number(self, key: str, default: int, most: int, least: int = 0) -> int:
        """A whole number. Raises Refused if it is none, or out of bounds."""
        text = self.text(key) or str(default)
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise Refused(HTTPStatus.BAD_REQUEST, f"{key}: allowed: a whole number from {least} to {most}")
        return int(text)

    def name(self, key: str) -> str:
        """A network, or a client by a name that was shown to this visitor. Raises Refused."""
        name = self.text(key)
        known = self.hider.address(name)
        if known is None and not self.sees_addresses and _is_address(name):
            raise Refused(HTTPStatus.FORBIDDEN, f"{key}: log in to ask for an address")
        return known or name


class Asked(NamedTuple):
    """A question as it is put to the daemon: equal ones have the same answer. `refuse` may refuse an answer."""

    parameters: tuple[Json, ...]
    refuse: Callable[[Json], None] = lambda _: None


class Kind(NamedTuple):
    """A kind of question. All who ask the same within `seconds` share an answer; `read` may take a second."""

    seconds: float
    parse: Callable[[Question], Asked]
    read: Callable[..., Json]


def _clients(question: Question) -> Asked:
    return _listed(question, question.number("number", 100, MAX_ROWS), question.number("from", 0, MAX_LISTED_CLIENTS))


def _all_clients(question: Question) -> Asked:
    return _listed(question, MAX_LISTED_CLIENTS, 0)


def _listed(question: Question, number: int, start: int) -> Asked:
    search, order = question.text("search"), question.text("order") or ClientOrder.SENT
    if search and not question.sees_addresses:
        raise Refused(HTTPStatus.FORBIDDEN, "log in to search")
    if order not in list(ClientOrder):
        raise Refused(HTTPStatus.BAD_REQUEST, f"order: allowed: {', '.join(ClientOrder)}")
    return Asked((number, start, order, search, question.text("network"), question.text("rule")))


def _history(question: Question) -> Asked:
    name, seconds = question.name("name"), _RANGES.get(question.text("seconds"))
    if seconds is None:
        raise Refused(HTTPStatus.BAD_REQUEST, f"seconds: allowed: {', '.join(_RANGES)}")
    is_shown = question.sees_addresses or name != question.text("name")

    def refuse(answer: Json) -> None:
        if answer["kind"] == "client" and not is_shown:
            raise Refused(HTTPStatus.FORBIDDEN, "log in to see the history of a device")

    return Asked((name, seconds, question.text("network") or None), refuse)


def _client(question: Question) -> Asked:
    name = question.name("name")
    if not question.sees_addresses and name == question.text("name"):
        raise Refused(HTTPStatus.FORBIDDEN, "name: log in to ask for a device")
    return Asked((name,))


def _week(question: Question) -> Asked:
    return Asked((question.number("at", 0, _LATEST) or None,))


def _timeline(question: Question) -> Asked:
    return Asked((question.text("instance") or None, question.number("after", 0, _LATEST)))


def _read_timeline(ask: Ask, instance: str | None, after: int) -> Json:
    """The events after a number, the latest first."""
    answer = ask("events", instance, after, 0.0)
    return {**answer, "events": answer["events"][::-1]}


def _nothing(_: Question) -> Asked:
    return Asked(())


def _asks(method: str) -> Callable[..., Json]:
    """Asks this method of the daemon."""
    return lambda ask, *parameters: ask(method, *parameters)


def _read_history(ask: Ask, *parameters: Json) -> Json:
    """What a network or a client has carried, as columns: `start` of each period, in seconds since the epoch; IP bytes
    as bits per second; and the sums of what was sent throttled and held back."""
    answer = ask("history", *parameters)
    resolution, periods = answer["resolution"], answer["periods"]

    def rates(column: str) -> list[int]:
        return [round(8 * period[column] / resolution) for period in periods]

    return {
        "kind": answer["kind"],
        "resolution": resolution,
        "start": [period["start"] for period in periods],
        "sent": rates("ip_sent"),
        "received": rates("ip_received"),
        "throttled": rates("ip_sent_throttled"),
        "held": [period["held_back_ms"] for period in periods],
        "loss": [_quotient(period["retransmitted"], period["sent"]) for period in periods],
        "rtt_ms": [_quotient(1000 * period["rtt_seconds"], period["rtt_samples"]) for period in periods],
        **{column: sum(period[column] for period in periods) for column in ("ip_sent_throttled", "held_back_ms")},
    }


def _quotient(part: float, whole: float) -> float | None:
    return round(part / whole, 6) if whole else None


KINDS: Final = {
    "budgets": Kind(5.0, _nothing, _asks("budgets")),
    "client": Kind(2.0, _client, _asks("client")),
    "clients": Kind(1.0, _clients, _asks("clients")),
    "history": Kind(2.0, _history, _read_history),
    "saved": Kind(30.0, _nothing, _asks("savings")),
    "timeline": Kind(2.0, _timeline, _read_timeline),
    "waiting": Kind(30.0, _nothing, _asks("waiting")),
    "week": Kind(30.0, _week, _asks("week")),
}
"""By the last part of the path."""

EXPORTS: Final = {
    **KINDS,
    "clients": Kind(10.0, _all_clients, _asks("clients")),
    "networks": Kind(1.0, _nothing, lambda ask: {"networks": ask("status")["networks"]}),
}
"""What can be exported."""


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        return ip_address(name) is not None
    return False
