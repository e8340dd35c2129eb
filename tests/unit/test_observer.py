"""How often the daemon observes what flows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from examples import ETHERNET, WIFI, client
from immutables import Map

from mptcp_throttle.model import AccessNetwork
from mptcp_throttle.units import Rate
from mptcp_throttled.accounting.history import FLUSH_SECONDS
from mptcp_throttled.observing.observer import next_observation, pause_after
from mptcp_throttled.vocabulary.snapshot import Snapshot


@pytest.mark.parametrize(("used", "pause"), [(0.0, 1.0), (0.01, 1.0), (0.03, 3.0), (0.05, 5.0), (2.0, 5.0)])
def test_pause_after_an_observation_follows_from_its_cost(used: float, pause: float) -> None:
    assert pause_after(used, None) == pytest.approx(pause)
    assert pause <= FLUSH_SECONDS


@pytest.mark.parametrize(
    ("used", "next_change", "pause"),
    [(0.0, 60.0, 0.4), (0.0, 0.2, 0.2), (0.0, 0.0, 0.05), (0.03, 60.0, 3.0), (0.03, 1.0, 1.0), (0.3, 0.0, 2.7)],
)
def test_pause_is_shorter_when_a_stage_of_a_budget_is_near(used: float, next_change: float, pause: float) -> None:
    assert pause_after(used, next_change) == pytest.approx(pause)


@pytest.mark.parametrize(
    ("network", "interval"),
    [
        (replace(ETHERNET, overflow=Rate.parse("6mbit")), 0.25),
        (replace(ETHERNET, shared=True), 0.5),
        (ETHERNET, None),
    ],
    ids=["overflow", "shared", "neither"],
)
def test_observer_rests_while_no_client_is_connected(network: AccessNetwork, interval: float | None) -> None:
    idle = Snapshot(networks=(WIFI, network))
    connected = client(1)
    busy = replace(idle, connections=Map({connected.token: connected}))
    assert [next_observation(busy, ahead) for ahead in (None, 60.0, 0.1)] == [interval, interval or 60.0, 0.1]
    assert [next_observation(idle, ahead) for ahead in (None, 60.0, 0.1)] == [None, 60.0, 0.1]
