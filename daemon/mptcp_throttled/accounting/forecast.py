"""When a budget will be spent, if it is used at the same rate as before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from mptcp_throttled.accounting.budget_account import BudgetUse

_LEAST_PART: Final = 1 / 30
"""The fraction of a period after which its use is enough for a forecast: a day of a month."""


class Forecast(NamedTuple):
    """When a budget will be spent, in seconds since the epoch; None: not before its period ends.

    `earliest` is by the highest known rate, `latest` by the lowest, `spent_at` by their mean.
    """

    spent_at: float | None
    earliest: float | None
    latest: float | None


def forecast(use: BudgetUse) -> Forecast | None:
    """The forecast for a budget; None: too little is known, or it is spent."""
    rates = list(_rates(use))
    if not rates or use.left == 0:
        return None
    mean = sum(rates) / len(rates)
    spent_at, earliest, latest = (_spent(use, rate) for rate in (mean, max(rates), min(rates)))
    return Forecast(spent_at, earliest, latest)


def _rates(use: BudgetUse) -> Iterable[float]:
    """The known rates of use in bytes/s: over the present period, and in the last hours."""
    length = use.period.end - use.period.start
    # The oldest use of a rolling budget began one length of the budget before it leaves.
    began = use.leaving[0][0] - length if use.leaving else use.period.start
    if use.at - began >= length * _LEAST_PART:
        yield use.use.used / (use.at - began)
    if use.recent_rate is not None:
        yield use.recent_rate


def _spent(use: BudgetUse, rate: float) -> float | None:
    """When the budget is spent at this rate, in bytes/s. What leaves a rolling budget can be used again."""
    until = use.at + use.period.end - use.period.start if use.budget.rolling else use.period.end
    left = use.left
    for time, amount in (*use.leaving, (until, 0)):
        end = use.at + left / rate if rate > 0 else until
        if end < min(time, until):
            return end
        left += amount
    return None
