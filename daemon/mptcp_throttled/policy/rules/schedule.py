"""Schedules: in the window that holds now, its rates replace the configured ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mptcp_throttled.vocabulary.terms import UNLIMITED, RuleName, Term

if TYPE_CHECKING:
    from mptcp_throttled.vocabulary.terms import RuleInput, Terms


def apply(terms: Terms, given: RuleInput) -> Terms:
    """The terms with the rates of the window that holds now. All scheduled kinds change when the window does."""
    window, until = given.present
    kinds = {kind for window in given.network.schedule for kind in window.rates}
    scheduled = {kind: Term(terms.get(kind, UNLIMITED).rate, None, until) for kind in kinds}
    if window is not None:
        reason = f"schedule {window.when}"
        scheduled |= {kind: Term(rate, reason, until, RuleName.SCHEDULE) for kind, rate in window.rates.items()}
    return {**terms, **scheduled}
