"""The kernel state that the decisions ask for: HTB classes, assignments and paces, as values.

Without shares there is no HTB: the interface keeps its own root qdisc. A share whose last subflow has gone keeps its
class for `linger` seconds at `DRAIN_RATE`: what is queued leaves at once, and a client that comes back finds its class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mptcp_throttle.model import FourTuple, RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.vocabulary.decision import Decision, Share
from mptcp_throttled.vocabulary.kernel_plan import DRAIN_RATE, OTHER_TRAFFIC_MINOR, KernelPlan, payload_pace


@dataclass(frozen=True, slots=True)
class Slot:
    """The class minor of a share. `idle_since` is when its last subflow ended, in monotonic seconds; None: in use."""

    minor: int
    idle_since: float | None = None


Slots = Mapping[Share, Slot]

Members = Mapping[Share, Mapping[FourTuple, Decision]]
"""The subflows of each share, and the decisions for them."""


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What planning needs of the configuration.

    `max_minor` is the largest minor that fits under the fwmark mask, `linger` is in seconds. `other_traffic` is the
    rate of traffic without an assignment; None: it is not shaped.
    """

    max_minor: int
    linger: float
    other_traffic: Rate | None


def assign_classes(
    shares: Iterable[Share], before: Slots, now: float, settings: PlanSettings, free: Iterator[int]
) -> dict[Share, Slot]:
    """Give every share a class minor. Shares keep those of `before`; idle shares keep them until they have lingered.

    A share for which `free` has no minor left gets none. `now` is in monotonic seconds.
    """
    wanted = dict.fromkeys(shares)
    slots = {}
    for share, slot in before.items():
        idle_since = now if slot.idle_since is None else slot.idle_since
        if share in wanted:
            slots[share] = Slot(slot.minor)
        elif now - idle_since < settings.linger:
            slots[share] = Slot(slot.minor, idle_since)
    for share in wanted:
        if share not in slots and (minor := next(free, None)) is not None:
            slots[share] = Slot(minor)
    return slots


def plan_for(members: Members, rates: Mapping[Share, Rate], slots: Slots, settings: PlanSettings) -> KernelPlan:
    """The kernel state for these shares, with HTB. Subflows whose share has no slot are free.

    `rates` are those of the shares with members. Shares are independent: the plan for some of them is a part of the
    plan for all.
    """
    classes: dict[int, Rate] = {}
    assignments: dict[FourTuple, int] = {}
    paces: dict[FourTuple, int] = {}
    for share, slot in slots.items():
        rate = rates.get(share)
        classes[slot.minor] = DRAIN_RATE if rate is None else rate
        if rate is None:
            continue
        subflows = members[share]
        assignments.update(dict.fromkeys(subflows, slot.minor))
        if share.kind is RateKind.CAP:
            # A stalled subflow sends next to nothing, perhaps for minutes, and does not count as a sharer.
            sharers = sum(not decision.subflow.stalled for decision in subflows.values())
            paces.update(dict.fromkeys(subflows, payload_pace(rate, max(sharers, 1))))
    default_minor = 0
    if settings.other_traffic is not None:
        default_minor = OTHER_TRAFFIC_MINOR
        classes[default_minor] = settings.other_traffic
    return KernelPlan(True, default_minor, classes, assignments, paces)


def expiry(slot: Slot, linger: float) -> float | None:
    """When a share will have lingered long enough, in monotonic seconds; None: it is in use."""
    return None if slot.idle_since is None else slot.idle_since + linger
