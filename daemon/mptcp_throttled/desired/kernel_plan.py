"""The kernel state we want, as plain data: from decisions to HTB classes and marks.

No share, no HTB: the interface keeps its own qdisc. A share whose last subflow has gone keeps its class for `linger`
seconds at `DRAIN_RATE`, so that what is queued leaves at once and a client that comes back finds its class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mptcp_throttle.units import Rate
from mptcp_throttled.policy.decide import Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mptcp_throttle.model import FourTuple
    from mptcp_throttled.policy.decide import Decision, Share

DRAIN_RATE: Final = Rate(10_000_000_000)
"""For a class nobody is marked for any more: faster than any interface an MPTCP proxy has a FIFO on."""

PAYLOAD_PART: Final = 0.94
"""HTB counts a rate on the wire, the kernel paces TCP's payload: 1428 of 1514 bytes of a full IPv4 frame with time
stamps and a DSS option, 1408 with IPv6. A little less, so that no queue builds up in HTB."""

OTHER_TRAFFIC_MINOR: Final = 1
"""The class of everything unmarked, if `other_traffic` is configured; shares are numbered after it."""


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """`classes` maps the minor number of each HTB class to its rate; `marks` each subflow to the minor of its class.

    `paces` are bytes/s of payload, by capped subflow: what MPTCP's scheduler is told, where the kernel can be told. One
    that is limited fills its congestion window, and its rate is known by that; a pace would keep the connection's send
    buffer from growing.
    With `default_minor` 0, HTB passes unmarked traffic unshaped (net/sched/sch_htb.c, direct queue).
    """

    htb: bool = False
    default_minor: int = 0
    classes: Mapping[int, Rate] = field(default_factory=dict)
    marks: Mapping[FourTuple, int] = field(default_factory=dict)
    paces: Mapping[FourTuple, int] = field(default_factory=dict)


UNTOUCHED: Final = KernelPlan()
"""The interface as we found it."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A class minor held by a share; `idle_since` is the monotonic time at which its last subflow went.

    Until the monotonic time `settling_until`, the pace alone slows its subflows: what their sockets had queued before
    leaves at the old rate.
    """

    minor: int
    idle_since: float | None = None
    settling_until: float | None = None


Slots = Mapping["Share", Slot]


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What planning needs of the configuration. `max_minor` is what fits under the mark mask.

    `settle` is how long the pace alone slows the subflows of a new class, in seconds; 0 where there is no pace.
    """

    max_minor: int
    linger: float
    other_traffic: Rate | None
    settle: float = 0.0


def allot(
    shares: Iterable[Share], before: Slots, now: float, rules: PlanSettings, free: Iterator[int]
) -> dict[Share, Slot]:
    """Give every share a class minor: those of `before` are kept, idle ones until they have lingered.

    A share for which no minor is left in `free` gets none. `now` is monotonic seconds.
    """
    wanted = dict.fromkeys(shares)
    slots = {}
    for share, slot in before.items():
        idle_since = now if slot.idle_since is None else slot.idle_since
        if share in wanted:
            until = slot.settling_until if slot.idle_since is None else _settling_until(share, now, rules)
            settling = until is not None and now < until and rules.settle > 0
            slots[share] = Slot(slot.minor, None, until if settling else None)
        elif now - idle_since < rules.linger:
            slots[share] = Slot(slot.minor, idle_since)
    for share in wanted:
        if share not in slots and (minor := next(free, None)) is not None:
            slots[share] = Slot(minor, None, _settling_until(share, now, rules))
    return slots


def _settling_until(share: Share, now: float, rules: PlanSettings) -> float | None:
    # Only what is paced is slowed by a pace.
    return now + rules.settle if rules.settle and share.rule is Rule.CAP else None


def plan_of(decisions: Iterable[Decision], slots: Slots, rules: PlanSettings) -> KernelPlan:
    """The kernel state for these decisions, with HTB. Subflows whose share has no slot are left alone.

    Shares do not concern each other: of a part of them, with all their decisions, it is that part of the plan.
    """
    rates: dict[int, Rate] = {}
    capped = {slot.minor for share, slot in slots.items() if share.rule is Rule.CAP}
    marks = {}
    for decision in decisions:
        if decision.held is not None and (slot := slots.get(decision.held.share)) is not None:
            rates[slot.minor] = decision.held.rate
            marks[decision.subflow.ends] = slot.minor
    paces = _paces(rates, {ends: minor for ends, minor in marks.items() if minor in capped})
    classes = {
        slot.minor: DRAIN_RATE if slot.settling_until is not None else rates.get(slot.minor, DRAIN_RATE)
        for slot in slots.values()
    }
    if rules.other_traffic is None:
        return KernelPlan(True, 0, classes, marks, paces)
    classes[OTHER_TRAFFIC_MINOR] = rules.other_traffic
    return KernelPlan(True, OTHER_TRAFFIC_MINOR, classes, marks, paces)


def _paces(rates: Mapping[int, Rate], marks: Mapping[FourTuple, int]) -> dict[FourTuple, int]:
    each = {
        minor: max(int(rates[minor].bytes_per_second * PAYLOAD_PART / sharers), 1)
        for minor, sharers in Counter(marks.values()).items()
    }
    return {ends: each[minor] for ends, minor in marks.items()}


def expiry(slot: Slot, linger: float) -> float | None:
    """The monotonic time at which a share has settled, or lingered long enough; None if it does neither."""
    return slot.settling_until if slot.idle_since is None else slot.idle_since + linger
