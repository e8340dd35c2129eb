"""What a change of the decisions means for the uplinks. A pure function."""

from __future__ import annotations

from collections.abc import Mapping

from mptcp_throttle.model import FourTuple, Token
from mptcp_throttled.vocabulary.decision import Decision, Previous


def uplink_changes(
    previous: Previous, present: Mapping[Token, tuple[Decision, ...]]
) -> dict[FourTuple, Decision | None]:
    """The decisions for the subflows whose uplink has another share or none now; None: the subflow has ended."""
    before = {d.subflow.ends: share for of in previous.values() for d in of if (share := d.uplink.share) is not None}
    after = {decision.subflow.ends: decision for token in previous for decision in present.get(token, ())}
    changes: dict[FourTuple, Decision | None] = {ends: None for ends in before if ends not in after}
    changes.update((ends, decision) for ends, decision in after.items() if before.get(ends) != decision.uplink.share)
    return changes
