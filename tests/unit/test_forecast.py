"""When a budget will be spent: by what was used in its period, and by what was used lately."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttle.model import Budget, Counting, Every, Per, RateKind, Stage
from mptcp_throttle.periods import Period
from mptcp_throttle.units import Rate
from mptcp_throttled.accounting.budget_account import BudgetUse
from mptcp_throttled.accounting.forecast import Forecast, forecast
from mptcp_throttled.accounting.recent_use import RecentUse
from mptcp_throttled.vocabulary.budgets import Use

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
BUDGET: Final = Budget(
    30_000, Per.NETWORK, Counting.BOTH, Every.MONTH, 1, None, (Stage(1.0, {RateKind.CAP: Rate.parse("256kbit")}),)
)


def use(used: int, days: float, recent_rate: float | None = None) -> BudgetUse:
    """What is used `days` after a period of 30 days has begun."""
    left = max(BUDGET.amount - used, 0)
    period = Period(0.0, 30 * DAY)
    return BudgetUse("lte", BUDGET, period, None, days * DAY, Use(used), (), left, 0, recent_rate)


def test_forecast_goes_on_at_the_rate_of_the_period() -> None:
    assert forecast(use(20_000, days=10)) == Forecast(15 * DAY, 15 * DAY, 15 * DAY)


def test_recent_rate_is_the_other_bound_of_a_forecast() -> None:
    # 2000 bytes a day until now, and lately 500: 1250 a day in the middle.
    foreseen = forecast(use(20_000, days=10, recent_rate=500 / DAY))
    assert foreseen is not None
    assert (foreseen.spent_at, foreseen.earliest) == pytest.approx((18 * DAY, 15 * DAY))
    assert foreseen.latest is None


def test_little_is_foreseen_at_the_begin_and_nothing_after_the_end() -> None:
    assert forecast(use(2000, days=0.5)) is None
    assert forecast(use(30_000, days=10)) is None
    assert forecast(use(2000, days=0.5, recent_rate=2000 / DAY)) == Forecast(14.5 * DAY, 14.5 * DAY, 14.5 * DAY)


def test_unused_budget_is_not_spent_before_its_period_ends() -> None:
    assert forecast(use(0, days=10)) == Forecast(None, None, None)


@given(st.integers(0, 29_999), st.floats(1, 29.9), st.none() | st.floats(0, 1))
def test_bounds_are_around_the_forecast_and_in_the_period(used: int, days: float, rate: float | None) -> None:
    present = use(used, days, rate)
    foreseen = forecast(present)
    assert foreseen is not None
    times = [present.period.end if at is None else at for at in (foreseen.earliest, foreseen.spent_at, foreseen.latest)]
    assert times == sorted(times)
    assert present.at <= times[0] <= present.period.end


def test_recent_rate_forgets_what_is_long_ago() -> None:
    recent = RecentUse(Every.DAY, 0.0)
    recent.add(None, 3600, HOUR / 2)
    assert recent.rate(None, HOUR / 2) is None
    for hour in range(1, 9):
        recent.add(None, 7200, hour * HOUR)
    steady = recent.rate(None, 8 * HOUR)
    assert steady == pytest.approx(2, rel=0.3)
    later = recent.rate(None, 32 * HOUR)
    assert later is not None
    assert later < 0.01


def test_recent_use_of_a_subject_that_has_gone_is_forgotten() -> None:
    recent = RecentUse(Every.DAY, 0.0)
    gone, present = ip_address("10.1.0.2"), ip_address("10.1.0.3")
    recent.add(gone, 10**9, 0.0)
    recent.add(present, 10**9, 86_400.0)
    recent.forget_old(86_400.0)
    assert recent.rate(gone, 86_400.0) == 0.0
    assert (recent.rate(present, 86_400.0) or 0.0) > 0
