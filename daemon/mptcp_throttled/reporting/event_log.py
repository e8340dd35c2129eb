"""The latest events, for readers that follow them; events are also logged.

Each instance of the daemon numbers its events from 1 on, without a gap. By the numbers a reader sees that it has missed
events, and by the instance that the daemon was restarted. Events that clients can cause are kept in a queue of their
own, so that they displace no others.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable
from heapq import merge
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_throttle.logs import with_fields
from mptcp_throttle.rpc.wire import MAX_EVENTS
from mptcp_throttled.vocabulary.events import Event, EventKind, coalesced

if TYPE_CHECKING:
    from mptcp_throttle.rpc import Json

_log = logging.getLogger("mptcp-throttled")

KEPT_FREQUENT: Final = 256
"""How many events that clients can cause are kept."""

KEPT_OTHERS: Final = MAX_EVENTS - KEPT_FREQUENT
"""How many other events are kept."""

_MAX_WAIT_SECONDS: Final = 5.0
# Readers that wait at a time: few of the connections that bounded_server.py allows. Calls beyond that return at once.
_MAX_WAITING: Final = 16

_LEVELS: Final = {
    EventKind.PAUSED: logging.WARNING,
    EventKind.BUDGET_WARNING: logging.WARNING,
    EventKind.BUDGET_STAGE: logging.WARNING,
    EventKind.BUDGET_SPENT: logging.WARNING,
    EventKind.FLEET_AWAY: logging.WARNING,
    EventKind.REFUSED: logging.ERROR,
    EventKind.ERROR_BEGAN: logging.ERROR,
}


class NumberedEvent(NamedTuple):
    """An event, its number, and when it happened, in seconds since the epoch."""

    number: int
    at: float
    event: Event


class EventLog:
    """The latest events; for any thread. `clock` gives seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._instance = secrets.token_hex(8)
        self._changed = threading.Condition()
        self._latest = 0
        self._kept: dict[bool, deque[NumberedEvent]] = {
            True: deque(maxlen=KEPT_FREQUENT),
            False: deque(maxlen=KEPT_OTHERS),
        }
        self._waiting = 0
        self._closed = False

    def say(self, *events: Event) -> None:
        """Keep and log the events of one moment, as `coalesced`."""
        for event in self.keep(*events):
            _log.log(_LEVELS.get(event.kind, logging.INFO), "%s", event.text, extra=with_fields(event.fields))

    def keep(self, *events: Event) -> list[Event]:
        """Keep the events of one moment, as `coalesced`, and return these; the log has other lines about them."""
        kept = coalesced(events)
        if not kept:
            return kept
        at = self._clock()
        with self._changed:
            for event in kept:
                self._latest += 1
                self._kept[event.kind.frequent].append(NumberedEvent(self._latest, at, event))
            self._changed.notify_all()
        return kept

    def close(self) -> None:
        """Let readers that wait return at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def after(self, instance: str | None, number: int, seconds: float) -> Json:
        """`{instance, latest, events}`: the kept events after this number; all, if `instance` is another one.

        If there are none, waits up to `seconds` for one, and no longer than 5 s.
        """
        with self._changed:
            if instance == self._instance:
                self._wait(number, min(max(0.0, seconds), _MAX_WAIT_SECONDS))  # NaN gives 0
            else:
                number = 0
            kept = [[each for each in events if each.number > number] for events in self._kept.values()]
            latest = self._latest
        events = merge(*kept, key=attrgetter("number"))
        return {"instance": self._instance, "latest": latest, "events": [_encode(each) for each in events]}

    def _wait(self, number: int, seconds: float) -> None:
        if self._waiting >= _MAX_WAITING:
            return
        self._waiting += 1
        try:
            self._changed.wait_for(lambda: self._closed or self._latest > number, seconds)
        finally:
            self._waiting -= 1


def _encode(numbered: NumberedEvent) -> Json:
    """The JSON object of an event."""
    event = numbered.event
    return {
        "number": numbered.number,
        "at": numbered.at,
        "kind": event.kind,
        "text": event.text,
        "network": event.network,
        "client": event.client,
        "rule": event.rule,
        "reason": event.reason,
        "until": event.until,
        "more_events": event.more_events,
    }
