"""What is said of caps that an overflow raises and lowers: each decision once, and few of many."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Final

import pytest
from examples import ETHERNET, WIFI

from mptcp_throttle.model import Address
from mptcp_throttle.units import Rate
from mptcp_throttled.policy.terms import terms_of
from mptcp_throttled.reporting.event_log import EventLog
from mptcp_throttled.reporting.overflow_events import CLIENT_SECONDS, PAUSE_SECONDS, OverflowEvents
from mptcp_throttled.vocabulary.events import MOST_ALIKE, Event, EventKind
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import Facts

CLIENT: Final = ip_address("10.1.0.1")
NETWORKS: Final = (WIFI, replace(ETHERNET, overflow=Rate(10_000_000)))
REASON: Final = "overflow: preferred paths carry less than 10mbit"


@dataclass
class Told:
    """The events of one step after another."""

    events: OverflowEvents = field(default_factory=OverflowEvents)
    before: Snapshot = field(default_factory=Snapshot)
    now: float = 1000.0

    def when(self, shortfalls: dict[Address, int], after: float = PAUSE_SECONDS) -> list[Event]:
        """The events of a step with these shortfalls, in Mb/s, `after` seconds."""
        self.now += after
        facts = Facts(shortfalls={"ethernet": {client: Rate(rate * 1_000_000) for client, rate in shortfalls.items()}})
        step, self.before = self.before, Snapshot(terms=terms_of(NETWORKS, self.now, facts), facts=facts)
        return self.events.step(step, self.before, self.now)


def test_each_decision_is_said_with_its_reason() -> None:
    told = Told()
    (raised,) = told.when({CLIENT: 7})
    assert (raised.kind, raised.text) == (
        EventKind.OVERFLOW_RAISED,
        f"ethernet: cap of 10.1.0.1 raised to 7mbit: {REASON}",
    )
    assert (raised.network, raised.client, raised.rule) == ("ethernet", "10.1.0.1", "overflow")
    assert told.when({CLIENT: 7}, CLIENT_SECONDS) == []
    (lower,) = told.when({CLIENT: 5}, CLIENT_SECONDS)
    assert (lower.kind, lower.text) == (
        EventKind.OVERFLOW_LOWERED,
        f"ethernet: cap of 10.1.0.1 lowered to 5mbit: {REASON}",
    )
    (ended,) = told.when({}, CLIENT_SECONDS)
    assert ended.text == "ethernet: cap of 10.1.0.1 lowered to 1mbit: preferred paths carry enough"
    assert told.when({}, CLIENT_SECONDS) == []


def test_client_whose_cap_changes_often_is_said_once_in_ten_seconds() -> None:
    told, said = Told(), 0
    for number in range(400):
        said += len(told.when({CLIENT: 2 + number % 7}, 0.25))
    assert 10 <= said <= 11


def test_change_that_is_undone_meanwhile_is_not_said() -> None:
    told = Told()
    told.when({CLIENT: 7})
    assert told.when({CLIENT: 5}, 1) == []
    assert told.when({CLIENT: 7}, 1) == []
    assert told.when({CLIENT: 7}, CLIENT_SECONDS) == []


def test_last_change_is_said_although_nothing_else_happens() -> None:
    told = Told()
    told.when({CLIENT: 7})
    told.when({CLIENT: 5}, 1)
    due = told.events.next_deadline
    assert due == pytest.approx(told.now - 1 + CLIENT_SECONDS)
    (lower,) = told.when({CLIENT: 5}, due - told.now)
    assert lower.kind is EventKind.OVERFLOW_LOWERED


def test_thousands_of_decisions_are_few_lines_a_second(caplog: pytest.LogCaptureFixture) -> None:
    told, log = Told(), EventLog(lambda: 0.0)
    with caplog.at_level(logging.INFO):
        for number in range(8):
            log.say(*told.when({CLIENT + client: 2 + (number + client) % 7 for client in range(2000)}, 0.25))
    assert 1 <= len(caplog.records) <= 2 * MOST_ALIKE
