"""Overflow: the cap of a client is raised to its shortfall, what its more preferred paths lack of `overflow`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mptcp_throttle.model import RateKind
from mptcp_throttled.vocabulary.terms import UNLIMITED, RuleName, Term

if TYPE_CHECKING:
    from mptcp_throttled.vocabulary.terms import RuleInput, Terms


def apply(terms: Terms, given: RuleInput) -> Terms:
    """The terms with the shortfall in place of a lower cap of downloads, but no more than the limit."""
    network, cap = given.network, terms.get(RateKind.CAP, UNLIMITED)
    shortfall = None if given.client is None else given.facts.shortfalls.get(network.name, {}).get(given.client)
    if shortfall is None or cap.rate is None or network.overflow is None:
        return terms
    limit = terms.get(RateKind.LIMIT, UNLIMITED).rate
    rate = shortfall if limit is None else min(shortfall, limit)
    if rate <= cap.rate:
        return terms
    reason = f"overflow: preferred paths carry less than {network.overflow}"
    return {**terms, RateKind.CAP: Term(rate, reason, cap.next_change, RuleName.OVERFLOW)}
