"""Overrides: rates set by hand in place of all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mptcp_throttled.vocabulary.operator import is_over
from mptcp_throttled.vocabulary.terms import Term

if TYPE_CHECKING:
    from mptcp_throttled.vocabulary.terms import RuleInput, Terms


def apply(terms: Terms, given: RuleInput) -> Terms:
    """The terms with rates set by hand in place of all others."""
    by_hand = {
        o.kind: Term(o.rate, "by hand, until reset" if o.end is None else "by hand", o.end)
        for o in given.facts.overrides
        if o.network == given.network.name and not is_over(o, given.now)
    }
    return {**terms, **by_hand}
