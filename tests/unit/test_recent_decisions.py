"""The latest decisions, as those who look see them."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples import connection, subflow
from loops import LoopOnModels

from mptcp_throttle.units import Rate
from mptcp_throttled.control.requests import requested_override


@pytest.fixture
def running(tmp_path: Path) -> LoopOnModels:
    return LoopOnModels(tmp_path)


def test_latest_decision_is_first_with_rate_and_reason(running: LoopOnModels) -> None:
    running.show(connection(1, subflow("10.1.0.1"), subflow("10.2.0.1")))
    (cap,) = running.loop.recent_decisions.latest(10)
    assert (cap["client"], cap["network"], cap["kind"], cap["rate"]) == ("10.1.0.1", "ethernet", "cap", "1mbit")
    assert (cap["reason"], cap["at"]) == ("wifi is live", running.clock.time())
    running.show(connection(1, subflow("10.1.0.1")))
    free, earlier = running.loop.recent_decisions.latest(10)
    assert (free["kind"], free["rate"], free["reason"]) == (None, None, "no live subflow on a more preferred network")
    assert earlier == cap


def test_end_of_a_subflow_is_no_decision(running: LoopOnModels) -> None:
    running.show(connection(1, subflow("10.1.0.1"), subflow("10.2.0.1")))
    running.show()
    assert [one["kind"] for one in running.loop.recent_decisions.latest(10)] == ["cap"]


def test_number_is_bounded_however_much_happens(running: LoopOnModels) -> None:
    running.show(*(connection(n, subflow(f"10.1.1.{n}"), subflow(f"10.2.1.{n}")) for n in range(1, 251)))
    assert len(running.loop.recent_decisions.latest(1000)) == 200
    assert len(running.loop.recent_decisions.latest(3)) == 3
    assert running.loop.recent_decisions.latest(-1) == []


def test_uplink_has_a_decision_of_its_own(running: LoopOnModels) -> None:
    running.show(connection(1, subflow("10.1.0.1"), subflow("10.2.0.1")))
    running.operator.set(
        requested_override("ethernet", "uplink", "cap", str(Rate(500_000)), None, running.clock.monotonic())
    )
    running.loop.step()
    (uplink,) = running.loop.recent_decisions.latest(1)
    assert (uplink["direction"], uplink["kind"], uplink["rate"]) == ("uplink", "cap", "500kbit")
