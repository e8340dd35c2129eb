"""The arithmetic of the benchmark of fleets: which clients do what, and how old is what a proxy knows."""

from __future__ import annotations

import math

import pytest

from mptcp_lab.benchmarks.fleet_ledgers import Load
from mptcp_lab.benchmarks.fleet_proxies import Seen, ages, of_budget

LOAD = Load(clients=100_000, proxies=10, active=5000, together=10)


def test_window_moves_over_the_clients_of_a_proxy() -> None:
    assert LOAD.of_each == 10_000
    assert LOAD.window(0.0) == range(5000)
    assert LOAD.window(10.0) == range(100, 5100)
    assert len(Load(10_000, 10, 1000, 10).window(10.0)) == 980


def test_client_that_is_shared_has_one_address_at_two_proxies() -> None:
    assert LOAD.address(2, 20) == LOAD.address(3, 20) != LOAD.address(4, 20)
    assert LOAD.address(2, 21) != LOAD.address(3, 21)
    assert {LOAD.number(LOAD.address(proxy, number)) for proxy in range(10) for number in (20, 21)} == {20, 21}


def test_last_client_of_the_window_reaches_its_stage_first() -> None:
    assert LOAD.crossing(4998) == pytest.approx(1.0)
    assert LOAD.crossing(4990) == pytest.approx(5.0)
    assert LOAD.crossing(5000) == math.inf


def test_near_are_those_within_ten_seconds_of_their_stage() -> None:
    near = LOAD.near(100.0)
    assert all((-10 < LOAD.crossing(number) - 100 <= 10) == (number in near) for number in LOAD.window(100.0))
    assert LOAD.near(0.0) == range(4980, 5000)


def test_age_is_since_the_others_had_carried_what_is_known() -> None:
    seen = [
        Seen(0.0, (0, 0), (0, 0), (False, False)),
        Seen(1.0, (10, 10), (0, 0), (False, False)),
        Seen(2.0, (20, 20), (10, 20), (False, False)),
        Seen(3.0, (30, 30), (20, 30), (False, True)),
    ]
    assert ages(seen) == [1.0, 1.0]


def test_beyond_the_budget_is_what_was_carried_in_the_end() -> None:
    seen = [Seen(0.0, (10_000_000,) * 3, (0,) * 3, (False,) * 3), Seen(1.0, (11_250_000,) * 3, (0,) * 3, (True,) * 3)]
    assert of_budget(seen) == {"beyond the budget, MB": 3.75, "beyond the budget, s of the rate": 1.0}
