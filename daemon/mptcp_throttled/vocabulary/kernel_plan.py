"""The kernel state that the decisions ask for: HTB classes, assignments and paces, as a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from immutables import Map

from mptcp_throttle.model import FourTuple
from mptcp_throttle.units import Rate

K = TypeVar("K")
V = TypeVar("V")

DRAIN_RATE: Final = Rate(10_000_000_000)
"""The rate of a class without assignments: its queue drains at once, as no proxy's interface is faster."""

PAYLOAD_PART: Final = 0.94
"""The fraction of a rate at which sockets are paced. HTB counts bytes on the wire, the kernel paces TCP's payload: 1428
of the 1514 bytes of a full IPv4 frame with time stamps and a DSS option, 1408 with IPv6. It is a little less, so that
no queue builds up in HTB."""

OTHER_TRAFFIC_MINOR: Final = 1
"""The class of traffic without an assignment, if `other_traffic` is configured. Those of shares have higher minors."""

_NONE: Final[Map] = Map()  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """`classes` maps the minor of each HTB class to its rate, `assignments` each subflow to the minor of its class.

    `paces` are bytes/s of payload, by capped subflow: MPTCP's scheduler reads them from the socket. A limited subflow
    has none: it fills its congestion window, from which its rate follows, and a pace would keep the connection's send
    buffer from growing. With `default_minor` 0, HTB does not shape traffic without an assignment (sch_htb.c, direct
    queue).

    The whole plan consists of persistent maps, which share their unchanged parts with the plan before. A part of a plan
    is made and read once, and consists of dictionaries.
    """

    htb: bool = False
    default_minor: int = 0
    classes: Mapping[int, Rate] = _NONE
    assignments: Mapping[FourTuple, int] = _NONE
    paces: Mapping[FourTuple, int] = _NONE

    def persistent(self) -> KernelPlan:
        """The plan as persistent maps."""
        return KernelPlan(self.htb, self.default_minor, Map(self.classes), Map(self.assignments), Map(self.paces))

    def part_of(self, before: KernelPlan, after: KernelPlan) -> KernelPlan:
        """The part of this plan about the classes and subflows that are in `before` or `after`."""
        return KernelPlan(
            self.htb,
            self.default_minor,
            _common(self.classes, before.classes, after.classes),
            _common(self.assignments, before.assignments, after.assignments),
            _common(self.paces, before.assignments, after.assignments),
        )

    def replaced(self, before: KernelPlan, after: KernelPlan) -> KernelPlan:
        """The plan with the part `after` in place of `before`, as persistent maps."""
        return KernelPlan(
            after.htb,
            after.default_minor,
            _replaced(self.classes, before.classes, after.classes),
            _replaced(self.assignments, before.assignments, after.assignments),
            _replaced(self.paces, before.paces, after.paces),
        )


def _common(whole: Mapping[K, V], *keys: Iterable[K]) -> dict[K, V]:
    return {key: whole[key] for some in keys for key in some if key in whole}


def _replaced(whole: Mapping[K, V], before: Mapping[K, V], after: Mapping[K, V]) -> Map[K, V]:
    if not whole:
        return Map(after)
    changed = Map(whole).mutate()
    for key in before:
        if key not in after:
            changed.pop(key, None)
    for key, value in after.items():
        if before.get(key) != value or key not in whole:
            changed[key] = value
    return changed.finish()


UNTOUCHED: Final = KernelPlan()
"""The interface as we found it."""


def payload_pace(rate: Rate, sharers: int) -> int:
    """The pace in bytes/s of each of the subflows that share a rate."""
    return max(int(rate.bytes_per_second * PAYLOAD_PART / sharers), 1)
