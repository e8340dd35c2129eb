"""Fleet: of each rate that several proxies share, this proxy has a part."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mptcp_throttle.model import Direction
from mptcp_throttle.units import Rate
from mptcp_throttled.vocabulary.fleet import WHOLE, RateKey
from mptcp_throttled.vocabulary.terms import RuleName

if TYPE_CHECKING:
    from mptcp_throttled.vocabulary.fleet import SharedRates
    from mptcp_throttled.vocabulary.terms import RuleInput, Term, Terms

_LEAST: Final = 1000
"""The lowest rate, in bits/s."""


def apply(terms: Terms, given: RuleInput) -> Terms:
    """The terms with this proxy's part of each rate."""
    shared, network, client = given.facts.shared, given.network, given.client
    if not network.shared or shared is None:
        return terms
    keys = {each: None if client is None else RateKey(network.name, client, each) for each in Direction}
    held = {direction: shared.held(key) for direction, key in keys.items()}
    return {
        kind: term if term.rate is None else _divided(term, term.rate, held[kind.direction], shared)
        for kind, term in terms.items()
    }


def _divided(term: Term, rate: Rate, held: int, shared: SharedRates) -> Term:
    if held >= WHOLE:
        return term
    part = max(rate.bits_per_second * held // WHOLE // 8 * 8, _LEAST)
    # A reason is part of decisions, so it must not contain what changes often, such as the part.
    number = "proxies" if shared.size > 1 else "proxy"
    reason = f"{rate} over {shared.size} {number}" + (", which are out of reach" if shared.is_away else "")
    reasons = [reason] if term.reason is None else [term.reason, reason]
    return replace(term, rate=min(Rate(part), rate), reason="; ".join(reasons), rule=RuleName.FLEET)
