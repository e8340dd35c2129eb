"""Budgets: the stages that a network or a client has reached narrow its rates until the next period begins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mptcp_throttle.model import Direction
from mptcp_throttle.units import format_share, format_volume
from mptcp_throttled.vocabulary.terms import UNLIMITED, RuleName, Term

if TYPE_CHECKING:
    from mptcp_throttle.units import Rate
    from mptcp_throttled.vocabulary.budgets import Reached
    from mptcp_throttled.vocabulary.terms import RuleInput, Terms


def apply(terms: Terms, given: RuleInput) -> Terms:
    """The terms, in which no rate is more than the reached stages allow.

    In a window that does not count, no rate is narrowed.
    """
    of_network = given.facts.spent.get(given.network.name, {})
    if not of_network:
        return terms
    subjects = (None,) if given.client is None else (None, given.client)
    offset, (window, change) = given.facts.wall_clock.offset, given.present
    is_free = window is not None and not window.counts
    narrowed = dict(terms)
    for reached in (each for subject in subjects for each in of_network.get(subject, ())):
        end = None if reached.until is None else reached.until - offset
        if end is not None and end <= given.now:
            continue
        until = min((at for at in (end, change) if at is not None), default=None)
        for kind, rate in reached.budget.allowed(reached.stages).items():
            narrowed[kind] = _narrowed(narrowed.get(kind, UNLIMITED), reached, rate, until, is_free=is_free)
    for direction in Direction:
        cap, limit = narrowed.get(direction.cap, UNLIMITED), narrowed.get(direction.limit, UNLIMITED)
        # A limit bounds the cap, which then has its reason.
        if cap.rate is not None and limit.rate is not None and cap.rate > limit.rate:
            narrowed[direction.cap] = limit
    return narrowed


def _narrowed(term: Term, reached: Reached, rate: Rate, until: float | None, *, is_free: bool) -> Term:
    if not is_free and (term.rate is None or rate < term.rate):
        return Term(rate, _reason(reached), until, RuleName.BUDGET)
    if until is not None and (term.next_change is None or until < term.next_change):
        return replace(term, next_change=until)
    return term


def _reason(reached: Reached) -> str:
    budget, at = reached.budget, reached.budget.stages[reached.stages - 1].at
    part = "" if at == 1 else f"{format_share(at)} of "
    return f"{part}{format_volume(budget.amount)} {budget.span} used"
