"""Finds the subflows that a step has moved to another share, and the caps that they shall have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mptcp_throttle.model import Direction, RateKind

if TYPE_CHECKING:
    from mptcp_throttle.model import FourTuple, Token
    from mptcp_throttled.vocabulary.decision import Decision, Previous, Throttle
    from mptcp_throttled.vocabulary.terms import PresentTerms


def share_changes(
    previous: Previous, present: Mapping[Token, tuple[Decision, ...]], direction: Direction
) -> dict[FourTuple, Decision | None]:
    """The decisions for the subflows whose share has changed, in a direction; None: the subflow has ended."""
    before = {
        d.subflow.ends: share
        for decisions in previous.values()
        for d in decisions
        if (share := d.of(direction).share) is not None
    }
    after = {decision.subflow.ends: decision for token in previous for decision in present.get(token, ())}
    changes: dict[FourTuple, Decision | None] = {ends: None for ends in before if ends not in after}
    changes.update(
        (ends, decision) for ends, decision in after.items() if before.get(ends) != decision.of(direction).share
    )
    return changes


def caps_of(decisions: Mapping[FourTuple, Decision | None], terms: PresentTerms) -> dict[FourTuple, Throttle | None]:
    """The caps of downloads that decisions ask for; None: the subflow has none, or has ended."""
    return {
        ends: None
        if d is None or d.downlink.share is None or d.downlink.share.kind is not RateKind.CAP
        else terms.throttle(d.downlink)
        for ends, d in decisions.items()
    }
