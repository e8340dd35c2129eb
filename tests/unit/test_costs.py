"""What caps have saved, by day, and how long clients waited."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from ipaddress import ip_network
from itertools import count
from pathlib import Path
from typing import Final

from examples import ETHERNET, WIFI, client
from loops import snapshot_of

from mptcp_throttle.model import Devices, NamedClient, Token
from mptcp_throttled.accounting.control_group import KEPT_DAYS, ComparedGroups, Comparison, DaySums
from mptcp_throttled.accounting.history_rows import HourOfWaiting
from mptcp_throttled.answers.costs import saved_since, savings, waiting
from mptcp_throttled.answers.view import View
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.control_group import EndedConnection

MB: Final = 1_000_000


def day(capped: list[int], control: list[int]) -> DaySums:
    """Connections of 10 MB each: of each, how many bytes went over networks with a cap."""
    sums = DaySums()
    for is_control, group in ((False, capped), (True, control)):
        for with_cap in group:
            sums = sums.plus(EndedConnection(Token(1), is_control, 1.0, 10 * MB, with_cap))
    return sums


def test_saving_is_what_the_control_group_carried_more() -> None:
    spread = [MB * (1 + number % 3) for number in range(60)]
    found = saved_since({"2026-11-28": day([each // 10 for each in spread], spread)}, date(2026, 11, 28))
    assert (found["carried"], found["without"], found["saved"]) == (12 * MB, 120 * MB, 108 * MB)
    assert found["fraction"] == 0.9
    assert 90 * MB < found["low"] < 108 * MB < found["high"] < 126 * MB
    assert found["control"] == {"connections": 60, "sent": 600 * MB, "sent_with_cap": 120 * MB}


def test_days_of_a_period_are_added_up_and_earlier_ones_are_not() -> None:
    days = {f"2026-11-{number}": day([MB] * 20, [2 * MB] * 20) for number in (26, 27, 28)}
    since = {number: saved_since(days, date(2026, 11, number)) for number in (27, 28)}
    assert (since[27]["carried"], since[27]["saved"], since[27]["low"]) == (40 * MB, 40 * MB, 40 * MB)
    assert (since[28]["carried"], since[28]["saved"], since[28]["fraction"]) == (20 * MB, None, None)


def test_caps_that_save_nothing_are_shown_with_no_saving() -> None:
    found = saved_since({"2026-11-28": day([2 * MB, 0] * 30, [0, 2 * MB] * 30)}, date(2026, 11, 28))
    assert found["saved"] == 0
    assert found["low"] < 0 < found["high"]
    assert saved_since({"2026-11-28": day([0] * 30, [0] * 30)}, date(2026, 11, 28))["fraction"] is None


def test_answer_has_today_and_the_month_of_the_time_zone(tmp_path: Path) -> None:
    now = datetime(2026, 11, 28, 15, tzinfo=UTC)
    view = View(snapshot_of(tmp_path, client(1)), Enforcement(), {}, Now(0.0, now.timestamp()))
    answer = savings(view, UTC)
    assert answer["problem"] == "there is no control group: daemon.control_group is 0"
    days = {"2026-11-01": day([MB] * 30, [2 * MB] * 30), "2026-10-31": day([MB] * 30, [2 * MB] * 30)}
    answer = savings(view._replace(groups=ComparedGroups(0.05), by_day=days), UTC)
    assert (answer["problem"], answer["share"], answer["networks"]) == (None, 0.05, ["ethernet"])
    today, month = answer["periods"]
    assert (today["name"], today["start"], today["carried"]) == ("today", now.replace(hour=0).timestamp(), 0)
    assert (month["name"], month["start"], month["saved"]) == ("month", now.replace(day=1, hour=0).timestamp(), 30 * MB)


def test_comparison_keeps_its_days_beside_those_of_earlier_instances() -> None:
    numbers = count(1)
    earlier = {"day-001": day([MB], [])}
    comparison = Comparison(0.5, earlier, lambda: f"day-{next(numbers):03}")
    ended = EndedConnection(Token(1), is_control=True, seconds=1.0, sent=10 * MB, sent_with_cap=MB)
    comparison.note([ended])
    assert comparison.own == {"day-001": day([], [MB])}
    assert comparison.by_day == {"day-001": day([MB], [MB])}
    assert comparison.groups == ComparedGroups(0.5, *day([], [MB]))
    for _ in range(KEPT_DAYS):
        comparison.note([ended])
    assert (min(comparison.own), len(comparison.own)) == ("day-002", KEPT_DAYS)


def test_hours_without_traffic_are_zeros_and_clients_have_an_address() -> None:
    bus = NamedClient("bus-14", (ip_network("10.1.0.9/32"),))
    networks = (WIFI, replace(ETHERNET, devices=Devices((bus,))))
    hour = HourOfWaiting(7200, clients=3, waiting=1, held_back_ms=38, p99_ms=38, worst_ms=38)
    answer = waiting([hour], {"gone": 90, "bus-14": 30, "10.1.0.2": 8}, 24 * 3600.0 + 5, networks)
    assert [each["start"] for each in answer["hours"]] == [*range(3600, 25 * 3600, 3600)]
    assert [each["held_back_ms"] for each in answer["hours"]][:3] == [0, 38, 0]
    assert answer["clients"] == [
        {"client": "10.1.0.9", "device": "bus-14", "held_back_ms": 30},
        {"client": "10.1.0.2", "device": None, "held_back_ms": 8},
    ]
