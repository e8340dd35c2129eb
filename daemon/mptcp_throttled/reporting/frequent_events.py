"""Events that clients can cause as often as they like: caps that begin and end, and errors.

The present caps and errors are compared with those at the last report. Those that have begun and ended in between are
not reported. The first change is reported at once; after a report, the next one follows `PAUSE_SECONDS` later at the
earliest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from mptcp_throttle.features import FEATURE_TEXTS
from mptcp_throttle.model import ClientPrefix, FourTuple
from mptcp_throttled.vocabulary.decision import Throttle
from mptcp_throttled.vocabulary.events import Event, EventKind
from mptcp_throttled.vocabulary.snapshot import Snapshot, Transition
from mptcp_throttled.vocabulary.terms import ClientKey

PAUSE_SECONDS: Final = 10.0

SNIFFER_DRAWBACK: Final = "the sniffer does not answer; all subflows are free"
_SNIFFER: Final = "sniffer"

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Changes(Generic[_Key, _Value]):
    """What has begun or ended since the last report. Times are in monotonic seconds."""

    def __init__(self) -> None:
        self._reported: dict[_Key, _Value] = {}
        self._changed: dict[_Key, _Value | None] = {}
        self._due = -math.inf

    @property
    def next_deadline(self) -> float:
        """When `take` has something to report; infinite: nothing has changed."""
        return self._due if self._changed else math.inf

    def note(self, key: _Key, value: _Value | None) -> None:
        """What has this key is there now, with this value; None: it is not there."""
        if value is not None or key in self._reported:
            self._changed[key] = value
        else:
            self._changed.pop(key, None)

    def assume(self, key: _Key, value: _Value) -> None:
        """What has this key was there at the last report."""
        self._reported[key] = value

    def take(self, now: float) -> tuple[dict[_Key, _Value], dict[_Key, _Value]]:
        """What has begun and what has ended; nothing before the next report is due."""
        began: dict[_Key, _Value] = {}
        ended: dict[_Key, _Value] = {}
        if now < self._due:
            return began, ended
        changed, self._changed = self._changed, {}
        for key, value in changed.items():
            if value is None:
                ended[key] = self._reported.pop(key)
            elif key not in self._reported:
                began[key] = self._reported[key] = value
        if began or ended:
            self._due = now + PAUSE_SECONDS
        return began, ended


class ErrorEvents:
    """Errors of the kernel, the sniffer and features, step by step. For one thread."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}
        self._changes: Changes[str, str] = Changes()

    @property
    def next_deadline(self) -> float:
        """When a step is due although nothing else happens, in monotonic seconds."""
        return self._changes.next_deadline

    def step(self, after: Snapshot, now: float) -> list[Event]:
        """The events of a step; `now` is in monotonic seconds."""
        present = problems(after)
        if present != self._problems:
            for key in {**self._problems, **present}:
                self._changes.note(key, present.get(key))
            self._problems = present
        began, ended = self._changes.take(now)
        return [
            *(Event(EventKind.ERROR_BEGAN, text) for text in began.values()),
            *(Event(EventKind.ERROR_ENDED, _resolved(key)) for key in ended),
        ]


def problems(snapshot: Snapshot) -> dict[str, str]:
    """The present errors of the kernel, the sniffer and features, by a key that stays the same while one lasts."""
    present = {error: error for error in snapshot.errors}
    if snapshot.sniffer.problem is not None:
        present[_SNIFFER] = f"{SNIFFER_DRAWBACK}: {snapshot.sniffer.problem}"
    if snapshot.operator.pause is None:
        for feature, texts in FEATURE_TEXTS.items():
            if (problem := snapshot.problem_of(feature)) is not None:
                present[feature] = f"{feature}: {texts.drawback}: {problem}"
    return present


def _resolved(key: str) -> str:
    in_place = {str(feature): texts.in_place for feature, texts in FEATURE_TEXTS.items()}
    return f"resolved: {({**in_place, _SNIFFER: 'the sniffer answers'}).get(key, key)}"


class Cap(NamedTuple):
    """A cap that has begun, and why."""

    throttle: Throttle
    reason: str | None


class CapEvents:
    """The events of clients that have a capped subflow on a network, in any direction, step by step. For one thread."""

    def __init__(self) -> None:
        self._changes: Changes[ClientKey, Cap] = Changes()
        self._subflows: Counter[ClientKey] = Counter()
        self._prefixes: Mapping[str, ClientPrefix] = {}

    @property
    def next_deadline(self) -> float:
        """When a step is due although nothing else happens, in monotonic seconds."""
        return self._changes.next_deadline

    def step(self, before: Snapshot, after: Snapshot, transitions: Iterable[Transition], now: float) -> list[Event]:
        """The events of a step; `now` is in monotonic seconds."""
        if after.networks is not before.networks:
            self._count_again(after)
        else:
            for transition in transitions:
                self._note(transition)
        began, ended = self._changes.take(now)
        return [
            *(_cap_began(network, str(client), cap, after) for (network, client), cap in began.items()),
            *(_cap_ended(network, str(client)) for network, client in ended),
        ]

    def _note(self, transition: Transition) -> None:
        before, after, decision = transition.before, transition.after, transition.decision
        if _caps_of_same_network(before, after):
            return  # another rate
        if before is not None and before.share.kind.is_cap:
            key = self._key(transition.ends, before)
            self._subflows[key] -= 1
            if self._subflows[key] <= 0:
                del self._subflows[key]
                self._changes.note(key, None)
        if after is not None and after.share.kind.is_cap:
            reason = None if decision is None else decision.of(transition.direction).reason
            self._count(transition.ends, Cap(after, reason))

    def _count(self, ends: FourTuple, cap: Cap, *, adopted: bool = False) -> None:
        key = self._key(ends, cap.throttle)
        self._subflows[key] += 1
        if adopted:
            self._changes.assume(key, cap)
        elif self._subflows[key] == 1:
            self._changes.note(key, cap)

    def _count_again(self, after: Snapshot) -> None:
        """Count all capped subflows again: at the first step, and when networks have changed, which define clients."""
        self._prefixes = {network.name: network.client_prefix for network in after.networks}
        before, self._subflows = self._subflows, Counter()
        for ends, throttled in after.throttled.items():
            if throttled.throttle.share.kind.is_cap:
                cap = Cap(throttled.throttle, throttled.decision.downlink.reason)
                self._count(ends, cap, adopted=throttled.adopted and not before)
        for ends, throttle in after.uplinks.items():
            if throttle.share.kind.is_cap:
                self._count(ends, Cap(throttle, None))
        for key in before.keys() - self._subflows.keys():
            self._changes.note(key, None)

    def _key(self, ends: FourTuple, throttle: Throttle) -> ClientKey:
        network, address = throttle.share.network, ends.client.address
        prefix = self._prefixes.get(network)
        return network, address if prefix is None else prefix.first(address)


def _caps_of_same_network(before: Throttle | None, after: Throttle | None) -> bool:
    if before is None or after is None or before.share.network != after.share.network:
        return False
    return before.share.kind.is_cap and after.share.kind.is_cap


def _cap_began(network: str, client: str, cap: Cap, after: Snapshot) -> Event:
    share, rate = cap.throttle.share, cap.throttle.rate
    text = f"{network}: {share.kind} {rate} for {client}" + (f": {cap.reason}" if cap.reason else "")
    return Event(EventKind.CAP_BEGAN, text, network, client, after.terms.term(share).rule, cap.reason)


def _cap_ended(network: str, client: str) -> Event:
    return Event(EventKind.CAP_ENDED, f"{network}: no cap for {client} any more", network, client)
