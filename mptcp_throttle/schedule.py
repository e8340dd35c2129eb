"""Schedules: which window of time counts at an instant, and when that changes.

A window is a predicate on the local time of an instant: it holds whenever the clock shows its times, whoever has set
that. In the night in which summer time ends it may hold twice, and in the other one not at all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta, tzinfo

from mptcp_throttle.model import Window
from mptcp_throttle.when import DAY, DAY_MINUTES, WEEK


def window_at(schedule: Sequence[Window], at: float, zone: tzinfo | None) -> Window | None:
    """The window that counts at a time, in seconds since the epoch; None: none holds.

    `zone` is that of the schedule; None: that of this host.
    """
    local = datetime.fromtimestamp(at, zone)
    return next((window for window in schedule if window.when.holds(local)), None)


def next_change(schedule: Sequence[Window], at: float, zone: tzinfo | None) -> float | None:
    """When another window, or none, will count, in seconds since the epoch; None: never."""
    present = window_at(schedule, at, zone)
    today = datetime.fromtimestamp(at, zone).date()
    # Weekdays repeat after a week, unless dates begin or end. One day more: a window may go on until the next day.
    dates = (day for window in schedule for day in (window.when.first, window.when.last) if day is not None)
    weeks = ((day + n * DAY for n in range(WEEK + 2)) for day in (today, *dates))
    days = sorted({day for week in weeks for day in week if day >= today})
    instants = (instant for day in days for instant in _instants(day, _boundaries(schedule), zone))
    return next((each for each in instants if each > at and window_at(schedule, each, zone) is not present), None)


def _boundaries(schedule: Iterable[Window]) -> set[int]:
    """The minutes of a day at which a window may begin or end."""
    return {minute % DAY_MINUTES for window in schedule for minute in (window.when.begin, window.when.end)} | {0}


def _instants(day: date, minutes: Iterable[int], zone: tzinfo | None) -> list[float]:
    """The instants of these minutes of a day, and of a change of the zone's offset; in their order."""
    midnight = datetime.combine(day, time())
    local = [midnight + timedelta(minutes=minute) for minute in minutes]
    begin, end = int(_epoch(midnight, zone)), int(_epoch(midnight + DAY, zone))
    offset = _offset(begin, zone)
    if _offset(end, zone) == offset:
        return sorted(_epoch(at, zone) for at in local)
    changed = bisect_left(range(begin, end), True, key=lambda second: _offset(second, zone) != offset)
    # A time that the clock shows twice is two instants (fold, PEP 495).
    return sorted((float(begin + changed), *(_epoch(at.replace(fold=fold), zone) for at in local for fold in (0, 1))))


def _epoch(local: datetime, zone: tzinfo | None) -> float:
    return local.replace(tzinfo=zone).timestamp()


def _offset(at: float, zone: tzinfo | None) -> timedelta | None:
    return datetime.fromtimestamp(at, zone).astimezone(zone).utcoffset()


def never_holds(schedule: Sequence[Window]) -> Iterator[int]:
    """The indices of the windows before which, at each of their instants, an earlier one holds."""
    boundaries = _boundaries(schedule)
    # A week before all dates.
    undated = [date(1, 1, 1) + days * DAY for days in range(WEEK, 2 * WEEK)]
    for index, window in enumerate(schedule):
        when, earlier = window.when, schedule[:index]
        days = undated if when.first is None or when.last is None else _days(when.first, when.last + DAY)
        if not any(
            when.holds(local) and not any(each.when.holds(local) for each in earlier)
            for day in days
            for minute in boundaries
            for local in [datetime.combine(day, time()) + timedelta(minutes=minute)]
        ):
            yield index


def _days(first: date, last: date) -> Iterator[date]:
    while first <= last:
        yield first
        first += DAY
