"""The rule of schedules: rates by the clock, through steps of the clock, below what is set by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from examples import ETHERNET, WIFI, cap, connection, subflow
from loops import LoopOnModels

from mptcp_throttle.model import AccessNetwork, RateKind, Window
from mptcp_throttle.units import Rate
from mptcp_throttle.when import When
from mptcp_throttled.policy.terms import terms_of
from mptcp_throttled.vocabulary.terms import Facts, RuleName, Term, WallClock

BERLIN: Final = ZoneInfo("Europe/Berlin")
SLOW, FAST = Rate.parse("512kbit"), Rate.parse("5mbit")
CONFIGURED: Final = ETHERNET.rates[RateKind.CAP]
SCHEDULED: Final = replace(
    ETHERNET,
    schedule=(
        Window(When.parse("Mon..Fri 08:00-18:00"), {RateKind.CAP: SLOW}),
        Window(When.parse("01:00-06:00"), {RateKind.CAP: None, RateKind.LIMIT: FAST}),
    ),
)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


def terms(text: str, network: AccessNetwork = SCHEDULED, now: float = 1000.0) -> dict[RateKind, Term]:
    """At this time of the wall clock, with times in seconds from now."""
    facts = Facts(wall_clock=WallClock(at(text) - now, BERLIN))
    found = terms_of((WIFI, network), now, facts).by_network[network.name]
    return {kind: replace(t, next_change=t.next_change and t.next_change - now) for kind, t in found.items()}


def test_window_replaces_the_rates_that_it_has_until_the_next_change() -> None:
    assert terms("2026-11-27 09:00") == {
        RateKind.CAP: Term(SLOW, "schedule Mon..Fri 08:00-18:00", 9 * 3600, RuleName.SCHEDULE),
        RateKind.LIMIT: Term(None, None, 9 * 3600),
    }
    assert terms("2026-11-27 18:00")[RateKind.CAP] == Term(CONFIGURED, None, 7 * 3600)
    assert terms("2026-11-28 05:00") == {
        RateKind.CAP: Term(None, "schedule 01:00-06:00", 3600, RuleName.SCHEDULE),
        RateKind.LIMIT: Term(FAST, "schedule 01:00-06:00", 3600, RuleName.SCHEDULE),
    }


def test_rate_by_hand_replaces_that_of_the_window() -> None:
    facts = Facts((cap("ethernet", FAST),), WallClock(at("2026-11-27 09:00"), BERLIN))
    assert terms_of((WIFI, SCHEDULED), 0.0, facts).rates["ethernet"][RateKind.CAP] == FAST


@pytest.fixture
def running(tmp_path: Path) -> LoopOnModels:
    """A loop that begins on a Friday at 07:59:50."""
    loop = LoopOnModels(tmp_path, (WIFI, replace(SCHEDULED, schedule=SCHEDULED.schedule[:1])))
    loop.clock.epoch = datetime(2026, 11, 27, 7, 59, 50).timestamp() - loop.clock.now  # in the zone of this host
    return loop


def rate(running: LoopOnModels) -> Rate | None:
    snapshot = running.show(connection(1, subflow("10.1.0.2"), subflow("10.2.0.2")))
    (throttled,) = snapshot.throttled.values()
    return throttled.throttle.rate


def test_loop_wakes_when_a_window_begins(running: LoopOnModels) -> None:
    assert rate(running) == CONFIGURED
    assert running.loop.snapshot.terms.next_change == pytest.approx(running.clock.now + 10)
    running.clock.now += 9
    assert rate(running) == CONFIGURED
    running.clock.now += 2
    assert rate(running) == SLOW


def test_clock_that_is_set_changes_the_window_at_once(running: LoopOnModels) -> None:
    assert rate(running) == CONFIGURED
    running.clock.epoch += 3600
    assert rate(running) == SLOW
    running.clock.epoch -= 3600
    assert rate(running) == CONFIGURED
