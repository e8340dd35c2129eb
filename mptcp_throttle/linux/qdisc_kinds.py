"""Kinds of qdiscs: which of them can be restored exactly after HTB has replaced them, and what is lost until then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from pyroute2 import IPRoute
from pyroute2.netlink.rtnl import TC_H_CLSACT, TC_H_ROOT

OWN_HANDLE: Final = 0x4D50_0000
"""Of our HTB: `4d50:` ("MP"). It is unlikely to be chosen by hand, and the kernel assigns handles from 8001: up
(sch_api.c)."""

_FIFOS: Final = frozenset({"noqueue", "pfifo", "bfifo", "pfifo_head_drop", "pfifo_fast"})
# These keep flows apart: a flow that fills its queue delays no other flow.
_SEPARATING: Final = frozenset({"sfq", "fq_codel", "fq", "cake"})
# These drop or mark packets early, so that queues stay short.
_ACTIVE: Final = frozenset({"codel", "fq_codel", "pie", "cake"})
_MULTIQUEUE: Final = frozenset({"mq", "multiq"})

RESTORABLE: Final = frozenset(
    {
        *_FIFOS,
        *("sfq", "codel", "fq_codel", "fq", "pie", "tbf"),
        # These create their classes themselves, one per band or transmit queue.
        *("mq", "multiq", "prio"),
    }
)
"""Kinds whose options and children are all that there is to them."""


class SeenQdisc(NamedTuple):
    """A qdisc of an interface, as the kernel lists it. The kernel's default has the handle 0."""

    kind: str
    handle: int
    parent: int


def seen_qdiscs(ip: IPRoute) -> dict[int, tuple[SeenQdisc, ...]]:
    """By the index of each interface, its qdiscs as `root_first` orders them. Raises what pyroute2 raises."""
    seen: dict[int, list[SeenQdisc]] = defaultdict(list)
    for qdisc in ip.get_qdiscs():
        seen[qdisc["index"]].append(SeenQdisc(qdisc.get_attr("TCA_KIND"), qdisc["handle"], qdisc["parent"]))
    return {index: root_first(qdiscs) for index, qdiscs in seen.items()}


def root_first(qdiscs: Iterable[SeenQdisc]) -> tuple[SeenQdisc, ...]:
    """The qdiscs of an interface that queue, the root first; empty without a root."""
    queueing = [qdisc for qdisc in qdiscs if qdisc.parent != TC_H_CLSACT]
    queueing.sort(key=lambda qdisc: qdisc.parent != TC_H_ROOT)
    return tuple(queueing) if queueing and queueing[0].parent == TC_H_ROOT else ()


def is_own(tree: Sequence[SeenQdisc]) -> bool:
    """Whether the root is the HTB of mptcp-throttled now."""
    return tree[0].handle == OWN_HANDLE


def kind_in_the_way(tree: Sequence[SeenQdisc]) -> str | None:
    """The first kind that cannot be restored, so that HTB does not take the root's place; None if there is none.

    `tree` has the root first. The kernel's default comes back by itself. Filters and size tables, which are in
    the way too, are not seen here.
    """
    if is_own(tree) or not tree[0].handle:
        return None
    return next((qdisc.kind for qdisc in tree if qdisc.handle and qdisc.kind not in RESTORABLE), None)


def lost_beside_htb(kinds: Sequence[str], queues: int) -> tuple[str, ...]:
    """What other traffic loses while HTB is there in place of a root qdisc: its `kinds`, root first, and `queues`.

    `queues` is the number of the interface's transmit queues.
    """
    losses = []
    if queues > 1 and kinds and kinds[0] in _MULTIQUEUE:
        losses.append(f"{queues} transmit queues are filled through one lock")
    if not _SEPARATING.isdisjoint(kinds):
        losses.append("flows share one queue")
    if not _ACTIVE.isdisjoint(kinds):
        losses.append("nothing keeps that queue short")
    if "fq" in kinds:
        losses.append("sockets are not paced (BBR)")
    if "tbf" in kinds:
        losses.append("other traffic has no rate, unless daemon.other_traffic gives it one")
    if "prio" in kinds:
        losses.append("no traffic comes before other traffic")
    return tuple(losses)
