"""Schedules: which window counts at an instant, when that changes, and what is refused."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttle.model import Window
from mptcp_throttle.schedule import never_holds, next_change, window_at
from mptcp_throttle.when import When

BERLIN, LORD_HOWE, UTC = ZoneInfo("Europe/Berlin"), ZoneInfo("Australia/Lord_Howe"), ZoneInfo("UTC")
NEVER: Final = (Window(When.parse("2020-02-29"), {}),)


def schedule(*texts: str) -> tuple[Window, ...]:
    return tuple(Window(When.parse(text), {}) for text in texts)


def at(text: str, zone: ZoneInfo = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


@pytest.mark.parametrize(
    ("text", "holds", "holds_not"),
    [
        ("Mon..Fri 08:00-18:00", ("2026-11-27 08:00", "2026-11-27 17:59"), ("2026-11-27 18:00", "2026-11-28 12:00")),
        ("Sat..Mon", ("2026-11-28 00:00", "2026-11-30 23:59"), ("2026-11-27 23:59", "2026-12-01 00:00")),
        ("Tue,Thu", ("2026-11-26 12:00",), ("2026-11-27 12:00",)),
        ("Fri 22:00-06:00", ("2026-11-27 22:00", "2026-11-28 05:59"), ("2026-11-27 05:00", "2026-11-28 22:00")),
        ("2026-12-24..2026-12-26", ("2026-12-24 00:00", "2026-12-26 23:59"), ("2026-12-23 23:59", "2026-12-27 00:00")),
        ("2026-12-31 22:00-02:00", ("2027-01-01 01:59",), ("2026-12-31 01:00", "2027-01-01 22:00")),
        ("18:00-24:00", ("2026-11-27 23:59",), ("2026-11-28 00:00",)),
    ],
)
def test_window_holds_on_its_days_and_at_its_times(
    text: str, holds: tuple[str, ...], holds_not: tuple[str, ...]
) -> None:
    when = When.parse(text)
    assert all(when.holds(datetime.fromisoformat(local)) for local in holds)
    assert not any(when.holds(datetime.fromisoformat(local)) for local in holds_not)


NO_WINDOWS: Final = (
    *("", "Mo", "mon", "Mon-Fri", "Mon..", "Mon Tue", "Mon 08:00-18:00 x"),
    *("08:00", "8:00-9:00", "08:00-08:00", "24:00-06:00", "25:00-26:00", "08:60-09:00"),
    *("2026-02-30", "2026-12-26..2026-12-24", "2026-01-01..2027-06-01"),
)


@pytest.mark.parametrize("text", NO_WINDOWS)
def test_text_that_is_no_window_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: "):
        When.parse(text)


def test_first_window_that_holds_counts() -> None:
    windows = schedule("2026-12-24", "Mon..Fri 08:00-18:00", "00:00-24:00")
    times = ("2026-12-24 12:00", "2026-12-23 12:00", "2026-12-23 20:00")
    assert [window_at(windows, at(text), BERLIN) for text in times] == list(windows)


@pytest.mark.parametrize(
    ("text", "now", "changes"),
    [
        # The clock goes from 02:00 to 03:00, and from 03:00 to 02:00.
        ("02:30-04:00", "2026-03-29 01:00", ["2026-03-29 03:00", "2026-03-29 04:00", "2026-03-30 02:30"]),
        ("01:00-03:00", "2026-10-25 00:30", ["2026-10-25 01:00", "2026-10-25 03:00", "2026-10-26 01:00"]),
        ("2026-12-24", "2026-11-28 05:00", ["2026-12-24 00:00", "2026-12-25 00:00"]),
        ("Mon", "2026-11-28 05:00", ["2026-11-30 00:00", "2026-12-01 00:00", "2026-12-07 00:00"]),
    ],
)
def test_changes_follow_the_clock_of_the_zone(text: str, now: str, changes: list[str]) -> None:
    windows, present = schedule(text), at(now)
    for expected in changes:
        present = next_change(windows, present, BERLIN) or 0.0
        assert datetime.fromtimestamp(present, BERLIN).strftime("%Y-%m-%d %H:%M") == expected


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("2026-12-24..2026-12-26", "2026-12-27 00:00"),
        ("2026-12-24 08:00-18:00", "2026-12-24 18:00"),
        ("2026-12-24 22:00-06:00", "2026-12-25 06:00"),
    ],
)
def test_window_is_over_when_it_will_hold_no_more(text: str, end: str) -> None:
    when, over = When.parse(text), datetime.fromisoformat(end)
    assert when.is_over(over)
    assert when.is_over(over.replace(tzinfo=BERLIN))
    assert not when.is_over(over - timedelta(minutes=1))


@pytest.mark.parametrize("text", ["Mon", "08:00-18:00"])
def test_window_without_dates_is_never_over(text: str) -> None:
    assert not When.parse(text).is_over(datetime(2099, 12, 31))


def test_schedule_whose_dates_are_over_changes_no_more() -> None:
    assert next_change(NEVER, at("2026-11-28 05:00"), BERLIN) is None
    assert next_change(schedule("00:00-24:00"), at("2026-11-28 05:00"), None) is None


DAYS = st.sampled_from(
    ["", "Mon", "Sat..Tue", "Wed,Sun", "Mon..Sun", "2026-03-28..2026-03-30", "2026-10-25", "2026-04-05"]
)
TIMES = st.sampled_from(["", "00:00-24:00", "02:30-03:30", "22:00-02:15", "01:45-02:00", "08:00-18:00", "12:00-00:00"])
TEXTS = st.builds(lambda days, times: f"{days} {times}".strip(), DAYS, TIMES).filter(bool)
SCHEDULES = st.lists(TEXTS, min_size=1, max_size=4).map(lambda texts: schedule(*texts))
# The days on which clocks change in these zones, and others.
INSTANTS = st.builds(
    lambda day, minute, zone: (datetime.combine(day, time(), zone) + timedelta(minutes=minute)).timestamp(),
    st.sampled_from([date(2026, 3, 29), date(2026, 10, 25), date(2026, 4, 5), date(2026, 10, 4), date(2026, 11, 28)]),
    st.integers(-60, 26 * 60),
    st.sampled_from([BERLIN, LORD_HOWE, UTC]),
)


@given(SCHEDULES, INSTANTS, st.sampled_from([BERLIN, LORD_HOWE, UTC]))
def test_next_change_is_the_first_minute_at_which_another_window_counts(
    windows: tuple[Window, ...], now: float, zone: ZoneInfo
) -> None:
    present, change = window_at(windows, now, zone), next_change(windows, now, zone)
    minutes = (now + 60 * minute for minute in range(1, 3 * 1440))
    expected = next((each for each in minutes if window_at(windows, each, zone) is not present), None)
    if expected is not None:
        assert change == expected
    elif change is not None:
        assert change >= now + 60 * 3 * 1440
        assert window_at(windows, change, zone) is not present


@given(SCHEDULES)
def test_window_that_never_counts_is_one_that_no_instant_has(windows: tuple[Window, ...]) -> None:
    days = [date(2026, 3, 16) + timedelta(days=days) for days in range(22)] + [date(2026, 10, 25), date(2026, 10, 26)]
    locals_ = [datetime.combine(day, time()) + timedelta(minutes=15 * n) for day in days for n in range(96)]
    counting = {next((i for i, w in enumerate(windows) if w.when.holds(local)), None) for local in locals_}
    assert set(never_holds(windows)) == set(range(len(windows))) - counting


def test_change_after_years_is_found_as_one_of_tomorrow() -> None:
    windows = schedule("2099-12-31 22:00-06:00", "2026-11-28..2027-11-28")
    present = at("2026-11-28 05:00")
    changes = []
    while (change := next_change(windows, present, BERLIN)) is not None:
        present = change
        changes.append(datetime.fromtimestamp(change, BERLIN).strftime("%Y-%m-%d %H:%M"))
    assert changes == ["2027-11-29 00:00", "2099-12-31 22:00", "2100-01-01 06:00"]
