"""When a budget will be spent, if what it is for goes on as it did."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from mptcp_throttled.accounting.budget_account import BudgetUse

_LEAST_PART: Final = 1 / 30
"""Of a period must be over, until what was used in it says anything: a day of a month."""


class Forecast(NamedTuple):
    """When a budget will be spent, in seconds since the epoch; None: not before its period ends.

    `earliest` and `latest` are by the higher and the lower of the rates that are known, `spent_at` by their mean.
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
    """In bytes/s: over the present period, and of the last hours, as far as they are known."""
    length = use.period.end - use.period.start
    # What was used first of a rolling budget leaves after its length.
    began = use.leaving[0][0] - length if use.leaving else use.period.start
    if use.at - began >= length * _LEAST_PART:
        yield use.use.used / (use.at - began)
    if use.recent_rate is not None:
        yield use.recent_rate


def _spent(use: BudgetUse, rate: float) -> float | None:
    """At this rate in bytes/s; what leaves a rolling budget can be used again."""
    until = use.at + use.period.end - use.period.start if use.budget.rolling else use.period.end
    left = use.left
    for time, amount in (*use.leaving, (until, 0)):
        end = use.at + left / rate if rate > 0 else until
        if end < min(time, until):
            return end
        left += amount
    return None
