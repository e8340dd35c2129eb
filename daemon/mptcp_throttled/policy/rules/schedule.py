"""Schedules: in the window that holds now, its rates replace the configured ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mptcp_throttle.schedule import next_change, window_at
from mptcp_throttled.vocabulary.terms import UNLIMITED, RuleName, Term

if TYPE_CHECKING:
    from mptcp_throttled.vocabulary.terms import RuleInput, Terms


def apply(terms: Terms, given: RuleInput) -> Terms:
    """The terms with the rates of the window that holds now; the others change with the next window, too."""
    schedule, (offset, zone) = given.network.schedule, given.facts.wall_clock
    if not schedule:
        return terms
    now = given.now + offset
    present, change = window_at(schedule, now, zone), next_change(schedule, now, zone)
    until = None if change is None else change - offset
    kinds = {kind for window in schedule for kind in window.rates}
    scheduled = {kind: Term(terms.get(kind, UNLIMITED).rate, None, until) for kind in kinds}
    if present is not None:
        reason = f"schedule {present.when}"
        scheduled |= {kind: Term(rate, reason, until, RuleName.SCHEDULE) for kind, rate in present.rates.items()}
    return {**terms, **scheduled}
