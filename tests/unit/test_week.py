"""A week of a schedule as intervals, also when clocks change."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from examples import ETHERNET, WIFI
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttle.errors import UserError
from mptcp_throttle.model import RateKind, Window
from mptcp_throttle.schedule import window_at
from mptcp_throttle.units import Rate
from mptcp_throttle.week import AHEAD_SECONDS, clock_changes, days_of_week, intervals, next_intervals
from mptcp_throttle.when import When
from mptcp_throttled.answers.calendar import requested_time, week

BERLIN: Final = ZoneInfo("Europe/Berlin")
NIGHT: Final = Window(When.parse("01:00-06:00"), {}, counts=False)
WORK: Final = Window(When.parse("Mon..Fri 08:00-18:00"), {RateKind.CAP: Rate.parse("512kbit")})
HOLIDAYS: Final = Window(When.parse("2026-12-24..2026-12-26"), {RateKind.CAP: None})
SCHEDULE: Final = (HOLIDAYS, NIGHT, WORK)
HOUR: Final = 3600.0


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


def hours(schedule: tuple[Window, ...], text: str) -> list[tuple[str, float, Window | None]]:
    """Of the week with that day the beginning of each interval, its length in hours, and the window."""
    days = days_of_week(at(text), BERLIN)
    return [
        (f"{datetime.fromtimestamp(each.start, BERLIN):%a %H:%M}", (each.end - each.start) / HOUR, each.window)
        for each in intervals(schedule, days[0], days[-1], BERLIN)
    ]


def test_week_begins_on_monday_and_has_seven_days() -> None:
    days = days_of_week(at("2026-11-26 14:32"), BERLIN)
    assert (days[0], days[-1], len(days)) == (at("2026-11-23"), at("2026-11-30"), 8)
    assert days_of_week(days[0], BERLIN) == days
    assert days_of_week(days[-1], BERLIN)[0] == days[-1]


def test_windows_of_a_week_follow_each_other_without_a_gap() -> None:
    assert hours((NIGHT, WORK), "2026-11-26")[:5] == [
        ("Mon 00:00", 1.0, None),
        ("Mon 01:00", 5.0, NIGHT),
        ("Mon 06:00", 2.0, None),
        ("Mon 08:00", 10.0, WORK),
        ("Mon 18:00", 7.0, None),
    ]


@pytest.mark.parametrize(("text", "length"), [("2027-03-28", 4.0), ("2026-10-25", 6.0), ("2026-11-29", 5.0)])
def test_window_over_a_change_of_clocks_ends_as_written(text: str, length: float) -> None:
    *_, night, _ = hours((NIGHT,), text)
    assert night == ("Sun 01:00", length, NIGHT)


def test_changes_of_clocks_have_their_instant_and_offsets() -> None:
    start = at("2026-11-26")
    changes = [tuple(each) for each in clock_changes(start, start + AHEAD_SECONDS, BERLIN)]
    assert changes == [(at("2027-03-28 03:00"), 3600, 7200), (at("2027-10-31 02:00") + HOUR, 7200, 3600)]
    assert not [*clock_changes(changes[0][0], changes[0][0] + 86400, BERLIN)]
    assert not [*clock_changes(start, start + AHEAD_SECONDS, ZoneInfo("UTC"))]


def test_next_intervals_are_those_that_begin_later() -> None:
    found = next_intervals(SCHEDULE, at("2026-12-23 20:00"), BERLIN, 3)
    assert [(each.start, each.window) for each in found] == [
        (at("2026-12-24"), HOLIDAYS),
        (at("2026-12-27"), None),
        (at("2026-12-27 01:00"), NIGHT),
    ]
    assert next_intervals((replace(NIGHT, when=When.parse("2026-01-01")),), at("2026-11-26"), BERLIN, 3) == []


@given(st.integers(0, 2 * 366 * 24 * 60), st.permutations(SCHEDULE))
def test_each_minute_is_in_the_interval_of_its_window(minutes: int, schedule: list[Window]) -> None:
    instant = at("2026-01-01") + 60 * minutes
    days = days_of_week(instant, BERLIN)
    assert days[0] <= instant < days[-1]
    found = [*intervals(schedule, days[0], days[-1], BERLIN)]
    assert [each.start for each in found] == [days[0], *(each.end for each in found[:-1])]
    (present,) = (each for each in found if each.start <= instant < each.end)
    assert present.window is window_at(schedule, instant, BERLIN)


def test_answer_has_the_rates_of_each_interval_and_what_comes_next() -> None:
    now = at("2027-03-26 14:32")
    answer = week([WIFI, replace(ETHERNET, schedule=(NIGHT, WORK))], now, now, BERLIN)
    (lane,) = answer["networks"]
    assert lane["name"] == "ethernet"
    monday = {each["when"]: each for each in lane["intervals"][:4]}
    assert {when: each["rates"]["downlink"]["cap"]["rate"] for when, each in monday.items()} == {
        None: "1mbit",
        "01:00-06:00": "1mbit",
        "Mon..Fri 08:00-18:00": "512kbit",
    }
    assert [each["counts"] for each in lane["intervals"][:2]] == [True, False]
    assert answer["clock_changes"] == [{"at": at("2027-03-28 03:00"), "before": 3600, "after": 7200}]
    assert answer["next_clock_change"] == answer["clock_changes"][0]
    assert [each["start"] for each in answer["next"]] == [
        at(f"2027-03-{day}") for day in ("26 18:00", "27 01:00", "27 06:00")
    ]
    assert [each["date"] for each in answer["days"]] == [f"2027-03-{day}" for day in range(22, 29)]


@pytest.mark.parametrize("wrong", ["now", True, 1e300, -1e12, float("nan")])
def test_week_of_no_time_is_refused(wrong: object) -> None:
    assert requested_time(None, 5.0, BERLIN) == 5.0
    assert requested_time(1_800_000_000, 5.0, BERLIN) == 1_800_000_000.0
    with pytest.raises(UserError, match="allowed: seconds since the epoch, from 2000 to 2099"):
        requested_time(wrong, 5.0, BERLIN)


def test_offset_of_a_zone_may_change_by_half_an_hour() -> None:
    zone = ZoneInfo("Australia/Lord_Howe")
    start = datetime(2026, 11, 26, tzinfo=zone).timestamp()
    changes = [*clock_changes(start, start + AHEAD_SECONDS, zone)]
    assert {timedelta(seconds=abs(each.after - each.before)) for each in changes} == {timedelta(minutes=30)}
