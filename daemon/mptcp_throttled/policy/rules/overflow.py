"""Overflow: the cap of a client is raised to what its more preferred paths lack of the rate that it shall have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mptcp_throttle.model import RateKind
from mptcp_throttled.vocabulary.terms import UNLIMITED, RuleName, Term

if TYPE_CHECKING:
    from mptcp_throttled.vocabulary.terms import RuleInput, Terms


def apply(terms: Terms, given: RuleInput) -> Terms:
    """The terms with a higher cap of downloads, up to their limit, if the client's preferred paths lack so much."""
    network, cap = given.network, terms.get(RateKind.CAP, UNLIMITED)
    lacking = None if given.client is None else given.facts.lacking.get(network.name, {}).get(given.client)
    if lacking is None or cap.rate is None or network.overflow is None:
        return terms
    limit = terms.get(RateKind.LIMIT, UNLIMITED).rate
    rate = lacking if limit is None else min(lacking, limit)
    if rate <= cap.rate:
        return terms
    reason = f"overflow: preferred paths carry less than {network.overflow}"
    return {**terms, RateKind.CAP: Term(rate, reason, cap.next_change, RuleName.OVERFLOW)}
