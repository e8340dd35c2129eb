"""A schedule as intervals of time, and when clocks change: what a calendar shows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import datetime, time, timedelta, tzinfo
from typing import Final, NamedTuple

from mptcp_throttle.model import Window
from mptcp_throttle.schedule import next_change, window_at
from mptcp_throttle.when import DAY, WEEK

AHEAD_SECONDS: Final = 400 * 86400.0
"""How far ahead changes are looked for: every yearly one is within."""


class Interval(NamedTuple):
    """From `start` to `end`, which is not included, in seconds since the epoch, `window` counts; None: none does."""

    start: float
    end: float
    window: Window | None


class ClockChange(NamedTuple):
    """At `at`, in seconds since the epoch, the offset from UTC becomes `after` in place of `before`, in seconds."""

    at: float
    before: int
    after: int


def days_of_week(at: float, zone: tzinfo | None) -> list[float]:
    """The beginnings of the days of the week with the instant `at`, from Monday on, and the end of the last.

    All in seconds since the epoch. `zone` None is that of this host.
    """
    day = datetime.fromtimestamp(at, zone).date()
    monday = datetime.combine(day - day.weekday() * DAY, time())
    return [(monday + number * DAY).replace(tzinfo=zone).timestamp() for number in range(WEEK + 1)]


def intervals(schedule: Sequence[Window], start: float, end: float, zone: tzinfo | None) -> Iterator[Interval]:
    """The windows that count from `start` to `end`, both in seconds since the epoch, without a gap."""
    while start < end:
        change = next_change(schedule, start, zone)
        stop = end if change is None else min(change, end)
        yield Interval(start, stop, window_at(schedule, start, zone))
        start = stop


def next_intervals(schedule: Sequence[Window], at: float, zone: tzinfo | None, number: int) -> list[Interval]:
    """The next intervals that begin after `at`, up to `number`. The end of the last is where looking ahead ends."""
    following: list[Interval] = []
    for interval in intervals(schedule, at, at + AHEAD_SECONDS, zone):
        if interval.start > at:
            following.append(interval)
        if len(following) == number:
            break
    return following


def clock_changes(start: float, end: float, zone: tzinfo | None) -> Iterator[ClockChange]:
    """When the offset of a zone changes after `start` and before `end`, both in seconds since the epoch."""
    earlier, before = int(start), _offset(start, zone)
    while earlier < end:
        later = min(earlier + 86400, int(end))
        if later <= earlier:
            return
        after = _offset(later, zone)
        if after != before:
            seconds = range(earlier, later + 1)
            at = seconds[bisect_left(seconds, True, key=lambda second: _offset(second, zone) == after)]
            yield ClockChange(float(at), before, after)
        earlier, before = later, after


def _offset(at: float, zone: tzinfo | None) -> int:
    offset = datetime.fromtimestamp(at, zone).astimezone(zone).utcoffset()
    return int((offset or timedelta()).total_seconds())
