"""Overrides: rates set by hand in place of all others, those of a client in place of its network's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mptcp_throttled.vocabulary.operator import is_over
from mptcp_throttled.vocabulary.terms import RuleName, Term

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mptcp_throttled.vocabulary.operator import Override
    from mptcp_throttled.vocabulary.terms import RuleInput, Terms


def apply(terms: Terms, given: RuleInput) -> Terms:
    """The terms with rates set by hand in place of all others."""
    if not given.facts.overrides:
        return terms
    name, client = given.network.name, given.network.client
    present = [o for o in given.facts.overrides if o.network == name and not is_over(o, given.now)]
    of_network = (o for o in present if o.client is None)
    of_client = (o for o in present if o.client is not None and client(o.client) == given.client)
    return {**terms, **_terms(of_network, "by hand"), **_terms(of_client, "by hand for this client")}


def _terms(overrides: Iterable[Override], reason: str) -> Terms:
    return {
        o.kind: Term(o.rate, f"{reason}, until reset" if o.end is None else reason, o.end, RuleName.BY_HAND)
        for o in overrides
    }
