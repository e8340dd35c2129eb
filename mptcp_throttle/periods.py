"""The periods of budgets: days, weeks and months of a calendar, in a time zone."""

from __future__ import annotations

from calendar import monthrange
from datetime import date, datetime, time, timedelta, tzinfo
from typing import NamedTuple

from mptcp_throttle.model import Every
from mptcp_throttle.when import DAY, WEEK


class Period(NamedTuple):
    """From `start` to `end`, which is not included, in seconds since the epoch."""

    start: float
    end: float


def period_at(every: Every, starts: int, at: float, zone: tzinfo | None) -> Period:
    """The period with the instant `at`, in seconds since the epoch; `starts` is as in `Budget`.

    A period begins at midnight in the `zone`; None: that of this host.
    """
    first, last = _days(every, starts, datetime.fromtimestamp(at, zone).date())
    return Period(_midnight(first, zone), _midnight(last, zone))


def _days(every: Every, starts: int, day: date) -> tuple[date, date]:
    """The first day of the period with this day, and that of the next."""
    match every:
        case Every.DAY:
            return day, day + DAY
        case Every.WEEK:
            first = day - timedelta(days=(day.weekday() - starts) % WEEK)
            return first, first + WEEK * DAY
        case Every.MONTH:
            first = _start_in_month(day, starts)
            if day < first:
                return _start_in_month(day.replace(day=1) - DAY, starts), first
            return first, _start_in_month(day.replace(day=monthrange(day.year, day.month)[1]) + DAY, starts)


def _start_in_month(day: date, starts: int) -> date:
    return day.replace(day=min(starts, monthrange(day.year, day.month)[1]))


def _midnight(day: date, zone: tzinfo | None) -> float:
    """Where clocks skip midnight, the first instant after it; where they show it twice, the first of both."""
    return datetime.combine(day, time(), zone).timestamp()
