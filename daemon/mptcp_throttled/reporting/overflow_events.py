"""Events of overflows that raise or lower the cap of a client.

Clients can cause them as often as they like. Of one client, at most one is reported in `CLIENT_SECONDS`; of all
clients, only as many as `coalesced` leaves, once in `PAUSE_SECONDS`. What has changed and changed back in between is
not reported.
"""

from __future__ import annotations

import math
from typing import Final

from mptcp_throttle.model import RateKind
from mptcp_throttled.vocabulary.events import Event, EventKind
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import UNLIMITED, ClientKey, Term

CLIENT_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 1.0


class OverflowEvents:
    """The raised caps, step by step. For one thread; times are in monotonic seconds."""

    def __init__(self) -> None:
        self._raised: dict[ClientKey, Term] = {}
        self._reported: dict[ClientKey, Term] = {}
        self._changed: dict[ClientKey, None] = {}
        self._client_due: dict[ClientKey, float] = {}
        self._due = -math.inf

    @property
    def next_deadline(self) -> float:
        """When a step is due although nothing else happens."""
        if not self._changed:
            return math.inf
        return max(self._due, min(self._client_due.get(key, -math.inf) for key in self._changed))

    def step(self, before: Snapshot, after: Snapshot, now: float) -> list[Event]:
        """What a step has changed."""
        if after.terms is not before.terms:
            raised = {
                (name, client): after.terms.by_client[name, client][RateKind.CAP]
                for name, clients in after.facts.shortfalls.items()
                for client in clients
                if after.terms.is_overflow((name, client))
            }
            changed = (key for key in raised.keys() | self._raised.keys() if raised.get(key) != self._raised.get(key))
            self._changed.update(dict.fromkeys(changed))
            self._raised = raised
        if not self._changed or now < self._due:
            return []
        due = [key for key in self._changed if self._client_due.get(key, now) <= now]
        events = [event for key in due if (event := self._event(key, after)) is not None]
        for key in due:
            del self._changed[key]
        if events:
            self._due = now + PAUSE_SECONDS
            self._client_due = {key: at for key, at in self._client_due.items() if at > now}
            self._client_due.update(dict.fromkeys(due, now + CLIENT_SECONDS))
        return events

    def _event(self, key: ClientKey, after: Snapshot) -> Event | None:
        """The event of a client whose cap differs from the last report; None: it does not differ."""
        (network, client), term = key, self._raised.get(key)
        otherwise = after.terms.by_client.get(key) or after.terms.by_network.get(network, {})
        present = term or otherwise.get(RateKind.CAP, UNLIMITED)
        reported = self._reported.pop(key, None)
        if term is not None:
            self._reported[key] = term
        if term == reported:
            return None
        is_raised = term is not None and (reported is None or _bits(reported) < _bits(term))
        kind = EventKind.OVERFLOW_RAISED if is_raised else EventKind.OVERFLOW_LOWERED
        text = f"{network}: cap of {client} {'raised' if is_raised else 'lowered'} to {present.rate or 'unlimited'}"
        text += f": {present.reason}" if present.reason else ": preferred paths carry enough"
        return Event(kind, text, network, str(client), present.rule, present.reason)


def _bits(term: Term) -> float:
    return math.inf if term.rate is None else term.rate.bits_per_second
