"""Kinds of qdiscs: which of them can be restored exactly after HTB has replaced them, and what is lost meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

FIFOS: Final = frozenset({"noqueue", "pfifo", "bfifo", "pfifo_head_drop", "pfifo_fast"})
SEPARATING: Final = frozenset({"sfq", "fq_codel", "fq", "cake"})
"""These keep flows apart: one that fills its queue delays no other."""
ACTIVE: Final = frozenset({"codel", "fq_codel", "pie", "cake"})
"""These drop or mark packets early, so that queues stay short."""
MULTIQUEUE: Final = frozenset({"mq", "multiq"})

RESTORABLE: Final = frozenset(
    {
        *FIFOS,
        *("sfq", "codel", "fq_codel", "fq", "pie", "tbf"),
        # These create their classes themselves, one per band or transmit queue.
        *("mq", "multiq", "prio"),
    }
)
"""Those whose options and children are all that there is to them."""


def lost_beside_htb(kinds: Sequence[str], queues: int) -> tuple[str, ...]:
    """What other traffic loses while HTB is there in place of a root qdisc: its `kinds`, root first, and `queues`.

    `queues` is the number of the interface's transmit queues.
    """
    losses = []
    if queues > 1 and kinds and kinds[0] in MULTIQUEUE:
        losses.append(f"{queues} transmit queues are filled through one lock")
    if not SEPARATING.isdisjoint(kinds):
        losses.append("flows share one queue")
    if not ACTIVE.isdisjoint(kinds):
        losses.append("nothing keeps that queue short")
    return tuple(losses)
