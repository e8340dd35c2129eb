"""The periods of budgets: when they begin in a time zone, and that each instant is in one of them."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttle.model import Every
from mptcp_throttle.periods import period_at

BERLIN: Final = ZoneInfo("Europe/Berlin")
# Clocks change at midnight in Havana, Beirut and Asunción, by half an hour on Lord Howe; Apia has left out a day.
ZONES: Final = (
    *("UTC", "Europe/Berlin", "America/Havana", "Asia/Beirut", "America/Asuncion", "Australia/Lord_Howe"),
    "Pacific/Apia",
)


def shown(at: float) -> str:
    return datetime.fromtimestamp(at, BERLIN).strftime("%a %Y-%m-%d %H:%M")


@pytest.mark.parametrize(
    ("every", "starts", "at", "start", "end"),
    [
        (Every.DAY, 0, "2026-03-29 12:00", "Sun 2026-03-29 00:00", "Mon 2026-03-30 00:00"),
        (Every.WEEK, 0, "2026-11-29 23:59", "Mon 2026-11-23 00:00", "Mon 2026-11-30 00:00"),
        (Every.WEEK, 6, "2026-11-29 00:00", "Sun 2026-11-29 00:00", "Sun 2026-12-06 00:00"),
        (Every.MONTH, 1, "2026-11-28 12:00", "Sun 2026-11-01 00:00", "Tue 2026-12-01 00:00"),
        (Every.MONTH, 15, "2026-11-14 23:59", "Thu 2026-10-15 00:00", "Sun 2026-11-15 00:00"),
        (Every.MONTH, 15, "2026-12-31 12:00", "Tue 2026-12-15 00:00", "Fri 2027-01-15 00:00"),
        (Every.MONTH, 31, "2026-02-28 00:00", "Sat 2026-02-28 00:00", "Tue 2026-03-31 00:00"),
        (Every.MONTH, 31, "2026-02-27 23:59", "Sat 2026-01-31 00:00", "Sat 2026-02-28 00:00"),
        (Every.MONTH, 30, "2028-02-29 12:00", "Tue 2028-02-29 00:00", "Thu 2028-03-30 00:00"),
    ],
)
def test_period_begins_at_midnight_of_its_first_day(every: Every, starts: int, at: str, start: str, end: str) -> None:
    period = period_at(every, starts, datetime.fromisoformat(at).replace(tzinfo=BERLIN).timestamp(), BERLIN)
    assert (shown(period.start), shown(period.end)) == (start, end)


@given(
    st.sampled_from(list(Every)),
    st.integers(0, 31),
    st.integers(946684800, 4102444800),
    st.sampled_from(ZONES).map(ZoneInfo),
)
def test_periods_follow_each_other_without_gaps(every: Every, day: int, at: int, zone: ZoneInfo) -> None:
    starts = day % 7 if every is Every.WEEK else max(day, 1)
    period = period_at(every, starts, at, zone)
    assert period.start <= at < period.end
    assert period_at(every, starts, period.start, zone) == period
    following = period_at(every, starts, period.end, zone)
    assert following.start == period.end
    assert period_at(every, starts, period.start - 1, zone).end == period.start
