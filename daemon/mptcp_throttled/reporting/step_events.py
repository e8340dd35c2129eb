"""Makes events of what a step of the loop has changed for the operator."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import listed
from mptcp_throttle.model import AccessNetwork, Window
from mptcp_throttle.schedule import next_change, window_at
from mptcp_throttled.reporting.frequent_events import CapEvents, ErrorEvents
from mptcp_throttled.reporting.overflow_events import OverflowEvents
from mptcp_throttled.vocabulary.events import Event, EventKind, until_text
from mptcp_throttled.vocabulary.operator import OperatorState, Override, Pause, is_over
from mptcp_throttled.vocabulary.snapshot import Snapshot, Transition
from mptcp_throttled.vocabulary.terms import RuleName, WallClock


class StepEvents:
    """The events of one step after another. For one thread; times are in monotonic seconds."""

    def __init__(self) -> None:
        self._windows = WindowEvents()
        self._caps = CapEvents()
        self._errors = ErrorEvents()
        self._overflow = OverflowEvents()
        self._is_first = True

    @property
    def next_deadline(self) -> float:
        """When a step is due although nothing else happens."""
        parts = self._windows, self._caps, self._errors, self._overflow
        return min(part.next_deadline for part in parts)

    def unlogged(self, before: Snapshot, after: Snapshot, now: float) -> list[Event]:
        """What a schedule, an overflow or an operator has changed: the log has no line about it yet."""
        is_first, self._is_first = self._is_first, False
        windows, overflow = self._windows.step(after, now), self._overflow.step(before, after, now)
        # At the first step everything is new, but nothing has changed.
        return [] if is_first else [*windows, *overflow, *set_by_hand(before, after, now)]

    def logged(self, before: Snapshot, after: Snapshot, transitions: Iterable[Transition], now: float) -> list[Event]:
        """What has expired, and changes of caps and errors: the log has other lines about these."""
        caps, errors = self._caps.step(before, after, transitions, now), self._errors.step(after, now)
        return [*ended_by_itself(before, after, now), *caps, *errors]


def set_by_hand(before: Snapshot, after: Snapshot, now: float) -> Iterator[Event]:
    """What the operator has set or removed; `now` is in monotonic seconds."""
    old, new = before.operator, after.operator
    if new is old:
        return
    for override in new.overrides:
        if override not in old.overrides:
            until, words = _end(override.end, after, now)
            rate = override.rate or "unlimited"
            text = f"{override.subject}: {override.kind} {rate} by hand{words or ', until reset'}"
            yield override_event(EventKind.RATE_SET, override, text, until)
    for override in _gone(old, new):
        if not is_over(override, now) and after.networks is before.networks:
            text = f"override of {override.subject} {override.kind} removed"
            yield override_event(EventKind.RATE_RESET, override, text)
    if new.pause is not None and new.pause != old.pause:
        yield paused(new.pause, after, now)
    elif new.pause is None and old.pause is not None and not is_over(old.pause, now):
        yield Event(EventKind.RESUMED, "resumed: caps and limits apply again", rule=RuleName.BY_HAND)


def ended_by_itself(before: Snapshot, after: Snapshot, now: float) -> Iterator[Event]:
    """What was set by hand and has expired, or was dropped by a reload; `now` is in monotonic seconds."""
    old, new = before.operator, after.operator
    if new is old:
        return
    for override in _gone(old, new):
        expired = is_over(override, now)
        if expired or after.networks is not before.networks:
            text = f"override of {override.subject} {override.kind} {'expired' if expired else 'dropped'}"
            yield override_event(EventKind.RATE_RESET, override, text)
    if new.pause is None and old.pause is not None and is_over(old.pause, now):
        yield Event(EventKind.RESUMED, "pause expired: caps and limits apply again", rule=RuleName.BY_HAND)


def _gone(old: OperatorState, new: OperatorState) -> list[Override]:
    """The overrides that are no longer there, and that no other one has replaced."""
    targets = {(each.network, each.client, each.kind) for each in new.overrides}
    return [each for each in old.overrides if (each.network, each.client, each.kind) not in targets]


def override_event(kind: EventKind, override: Override, text: str, until: float | None = None) -> Event:
    """An event about an override; `until` is in seconds since the epoch."""
    client = None if override.client is None else str(override.client)
    return Event(kind, text, override.network, client, RuleName.BY_HAND, until=until)


def paused(pause: Pause, snapshot: Snapshot, now: float) -> Event:
    """A pause has begun, or goes on at a start; `now` is in monotonic seconds."""
    until, words = _end(pause.end, snapshot, now)
    text = f"paused by the operator{words or ', until resumed'}: nothing is throttled; `mptcp-throttle resume` ends it"
    return Event(EventKind.PAUSED, text, rule=RuleName.BY_HAND, until=until)


def _end(end: float | None, snapshot: Snapshot, now: float) -> tuple[float | None, str]:
    """An end in monotonic seconds as seconds since the epoch, and in words."""
    offset, zone = snapshot.facts.wall_clock
    until = None if end is None else end + offset
    return until, until_text(until, now + offset, zone)


class WindowEvents:
    """The window of each network that holds, step by step. For one thread."""

    def __init__(self) -> None:
        self.next_deadline = math.inf
        self._inputs: tuple[tuple[AccessNetwork, ...], WallClock] | None = None
        self._present: dict[str, Window] = {}

    def step(self, after: Snapshot, now: float) -> list[Event]:
        """What a step has changed; `now` is in monotonic seconds."""
        inputs = after.networks, after.facts.wall_clock
        if inputs == self._inputs and now < self.next_deadline:
            return []
        self._inputs = inputs
        offset, zone = after.facts.wall_clock
        at = now + offset
        schedules = {network.name: network.schedule for network in after.networks if network.schedule}
        ends = {name: next_change(schedule, at, zone) for name, schedule in schedules.items()}
        self.next_deadline = min((end - offset for end in ends.values() if end is not None), default=math.inf)
        windows = {name: window_at(schedule, at, zone) for name, schedule in schedules.items()}
        before, self._present = self._present, {name: each for name, each in windows.items() if each is not None}
        return [
            *(_window_ended(name, each) for name, each in before.items() if self._present.get(name) != each),
            *(
                _window_began(name, each, ends[name], until_text(ends[name], at, zone))
                for name, each in self._present.items()
                if before.get(name) != each
            ),
        ]


def _window_began(network: str, window: Window, until: float | None, words: str) -> Event:
    text = f"{network}: window {window.when} began{words}: {window.effect}"
    return Event(EventKind.WINDOW_BEGAN, text, network, None, RuleName.SCHEDULE, f"schedule {window.when}", until)


def _window_ended(network: str, window: Window) -> Event:
    text, reason = f"{network}: window {window.when} ended", f"schedule {window.when}"
    return Event(EventKind.WINDOW_ENDED, text, network, None, RuleName.SCHEDULE, reason)


def started(config: Config) -> Event:
    """The daemon throttles from now on."""
    interfaces, networks = ", ".join(config.proxy.interfaces), ", ".join(network.name for network in config.networks)
    return Event(EventKind.DAEMON_STARTED, f"throttling on {interfaces}, networks {networks}")


def reloaded(changes: Iterable[object], problems: Iterable[str]) -> Event:
    """The configuration files were read again: what has changed, or why nothing has."""
    refused = listed(problems)
    if refused:
        return Event(EventKind.REFUSED, f"reload refused: {refused}")
    return Event(EventKind.RELOADED, f"reloaded: {listed(changes) or 'nothing changed'}")
