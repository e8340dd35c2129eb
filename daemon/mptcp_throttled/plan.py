"""The kernel state we want, as plain data: from treatments to HTB classes and marks.

No share, no HTB: the interface keeps its own qdisc. A share whose last subflow has gone keeps its class for `linger`
seconds at `DRAIN_RATE`, so that what is queued leaves at once and a client that comes back finds its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mptcp_throttle.model import FourTuple
    from mptcp_throttled.policy import Share, Treatment

DRAIN_RATE: Final = Rate(10_000_000_000)
"""For a class nobody is marked for any more: faster than any interface an MPTCP proxy has a FIFO on."""

OTHER_TRAFFIC_MINOR: Final = 1
"""The class of everything unmarked, if `other_traffic` is configured; shares are numbered after it."""


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """`classes` maps the minor number of each HTB class to its rate; `marks` each subflow to the minor of its class.

    With `default_minor` 0, HTB passes unmarked traffic unshaped (net/sched/sch_htb.c, direct queue).
    """

    htb: bool = False
    default_minor: int = 0
    classes: Mapping[int, Rate] = field(default_factory=dict)
    marks: Mapping[FourTuple, int] = field(default_factory=dict)


UNTOUCHED: Final = KernelPlan()
"""The interface as we found it."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A class minor held by a share; `idle_since` is the monotonic time at which its last subflow went."""

    minor: int
    idle_since: float | None = None


Slots = Mapping["Share", Slot]


@dataclass(frozen=True, slots=True)
class PlanRules:
    """What planning needs of the configuration. `max_minor` is what fits under the mark mask."""

    max_minor: int
    linger: float
    other_traffic: Rate | None


def allot(shares: Sequence[Share], before: Slots, now: float, rules: PlanRules) -> dict[Share, Slot]:
    """Give every share a class minor: those of `before` are kept, idle ones until they have lingered.

    A share for which no minor is left gets none. `now` is monotonic seconds.
    """
    wanted = set(shares)
    slots = {}
    for share, slot in before.items():
        idle_since = None if share in wanted else slot.idle_since if slot.idle_since is not None else now
        if idle_since is None or now - idle_since < rules.linger:
            slots[share] = Slot(slot.minor, idle_since)
    # A minor given up in this step rests until the next: its marks may still be in the kernel.
    taken = {slot.minor for slot in before.values()}
    free = (minor for minor in range(OTHER_TRAFFIC_MINOR + 1, rules.max_minor + 1) if minor not in taken)
    for share in shares:
        if share not in slots and (minor := next(free, None)) is not None:
            slots[share] = Slot(minor)
    return slots


def make_plan(treatments: Sequence[Treatment], slots: Slots, rules: PlanRules) -> KernelPlan:
    """The kernel state for these treatments. Subflows whose share has no slot are left alone."""
    if not slots:
        return UNTOUCHED
    classes = {slot.minor: DRAIN_RATE for slot in slots.values()}
    marks = {}
    for treatment in treatments:
        if treatment.held is not None and (slot := slots.get(treatment.held.share)) is not None:
            classes[slot.minor] = treatment.held.rate
            marks[treatment.subflow.ends] = slot.minor
    if rules.other_traffic is None:
        return KernelPlan(True, 0, classes, marks)
    classes[OTHER_TRAFFIC_MINOR] = rules.other_traffic
    return KernelPlan(True, OTHER_TRAFFIC_MINOR, classes, marks)


def next_expiry(slots: Slots, linger: float) -> float | None:
    """The monotonic time at which the first idle share has lingered long enough; None if none is idle."""
    return min((slot.idle_since + linger for slot in slots.values() if slot.idle_since is not None), default=None)
