"""The plan, kept up to date: only the shares that a change concerns are planned again.

At any time it is what `plan.allot` and `plan.plan_of` make of all decisions. The first plan takes up the marks that an
earlier instance has left: whoever is marked stays in his class.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from mptcp_throttled.desired.kernel_plan import (
    OTHER_TRAFFIC_MINOR,
    UNTOUCHED,
    KernelPlan,
    PlanSettings,
    Slot,
    allot,
    expiry,
    plan_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from mptcp_throttle.model import FourTuple, Token
    from mptcp_throttle.units import Rate
    from mptcp_throttled.policy.decide import Decision, Share
    from mptcp_throttled.policy.decision_table import Previous

_TOGETHER_SECONDS: Final = 0.02

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Change:
    """What an update has changed: the part of the plan that it concerns, as it was and as it is.

    With `root` the change is in what all shares have in common, and the part does not tell it all.
    `decisions` are those of all subflows that it concerns; None for one that has gone.
    """

    before: KernelPlan
    after: KernelPlan
    root: bool
    decisions: Mapping[FourTuple, Decision | None]

    @property
    def empty(self) -> bool:
        """Whether the plan is as it was."""
        return not self.root and self.before == self.after


class Planner:
    """The shares, their classes, and the plan. For one thread; what it hands out is live."""

    def __init__(self) -> None:
        self.plan = UNTOUCHED
        self.slots: dict[Share, Slot] = {}
        self.without_class: dict[Share, None] = {}
        self._rules = PlanSettings(OTHER_TRAFFIC_MINOR, 0.0, None)
        self._classes: dict[int, Rate] = {}
        self._marks: dict[FourTuple, int] = {}
        self._paces: dict[FourTuple, int] = {}
        self._members: dict[Share, dict[FourTuple, Decision]] = {}
        self._minors = _Minors()
        self._timers: list[tuple[float, int]] = []
        self._shares: dict[int, Share] = {}
        self._found: Mapping[FourTuple, int] = {}

    def adopt(self, marks: Mapping[FourTuple, int]) -> None:
        """Let the next update, the first, give shares the classes that their subflows are marked for in the kernel.

        Whatever else the marks say is heeded only in that no new share gets a class that somebody is marked for.
        """
        self._found = marks

    def update(
        self, former: Previous, present: Mapping[Token, Iterable[Decision]], now: float, rules: PlanSettings
    ) -> Change:
        """Plan for connections whose decisions were `former` and are those of `present`, at `now` (monotonic)."""
        decisions: dict[FourTuple, Decision | None] = {t.subflow.ends: None for old in former.values() for t in old}
        new = [decision for token in former for decision in present.get(token, ())]
        concerned = dict.fromkeys(t.held.share for old in former.values() for t in old if t.held is not None)
        concerned.update((t.held.share, None) for t in new if t.held is not None)
        concerned.update(dict.fromkeys(self.slots if rules != self._rules else self._expired(now)))
        self._minors.end_of_rest(rules.max_minor)
        concerned.update(dict.fromkeys(islice(self.without_class, len(self._minors))))

        root = self._root
        slots = {share: self.slots[share] for share in concerned if share in self.slots}
        before = plan_of(self._treatments(concerned), slots, self._rules)
        for old in former.values():
            for decision in old:
                self._remove(decision)
        for decision in new:
            decisions[decision.subflow.ends] = decision
            if decision.held is not None:
                self._members.setdefault(decision.held.share, {})[decision.subflow.ends] = decision
        wanted = [share for share in concerned if share in self._members]
        if self._found:
            slots = self._taken_up(wanted, rules)
        slots = allot(wanted, slots, now, rules, self._minors)
        self._take(concerned, slots, rules)
        after = plan_of(self._treatments(concerned), slots, rules)
        for share in wanted:
            decisions.update(self._members[share])
        self._merge(before, after)
        if not self.slots:
            self._classes.clear()
        self._rules = rules
        self.plan = KernelPlan(*self._root, self._classes, self._marks, self._paces) if self.slots else UNTOUCHED
        return Change(before, after, root != self._root, decisions)

    @property
    def _root(self) -> tuple[bool, int]:
        return bool(self.slots), OTHER_TRAFFIC_MINOR if self._rules.other_traffic is not None else 0

    @property
    def next_expiry(self) -> float | None:
        """The monotonic time at which something changes by itself, and what follows soon with it; None: never."""
        return self._timers[0][0] + _TOGETHER_SECONDS if self._timers else None

    def _taken_up(self, shares: Iterable[Share], rules: PlanSettings) -> dict[Share, Slot]:
        found, self._found = self._found, {}
        marked = set(found.values()) & set(range(OTHER_TRAFFIC_MINOR + 1, rules.max_minor + 1))
        left = set(marked)
        slots = {}
        for share in shares:
            minor = next((found[ends] for ends in self._members[share] if found.get(ends) in left), None)
            if minor is not None:
                slots[share] = Slot(minor)
                left.remove(minor)
        self._minors.adopt(marked, left)
        return slots

    def _treatments(self, shares: Iterable[Share]) -> Iterator[Decision]:
        return (decision for share in shares for decision in self._members.get(share, {}).values())

    def _remove(self, decision: Decision) -> None:
        if decision.held is not None:
            members = self._members[decision.held.share]
            members.pop(decision.subflow.ends, None)
            if not members:
                del self._members[decision.held.share]

    def _take(self, concerned: Iterable[Share], slots: Mapping[Share, Slot], rules: PlanSettings) -> None:
        for share in concerned:
            old, new = self.slots.pop(share, None), slots.get(share)
            self.without_class.pop(share, None)
            if new is not None:
                self.slots[share] = new
                self._shares[new.minor] = share
                at = expiry(new, rules.linger)
                if at is not None:
                    heapq.heappush(self._timers, (at, new.minor))
            elif share in self._members:
                self.without_class[share] = None
            if old is not None and new is None:
                del self._shares[old.minor]
                self._minors.release(old.minor)

    def _expired(self, now: float) -> Iterator[Share]:
        # A share may have got another time since, or gone: to look at it once more changes nothing.
        while self._timers and self._timers[0][0] <= now:
            _, minor = heapq.heappop(self._timers)
            if minor in self._shares:
                yield self._shares[minor]

    def _merge(self, before: KernelPlan, after: KernelPlan) -> None:
        _exchange(self._classes, before.classes, after.classes)
        _exchange(self._marks, before.marks, after.marks)
        _exchange(self._paces, before.paces, after.paces)


def _exchange(whole: dict[K, V], gone: Mapping[K, V], come: Mapping[K, V]) -> None:
    for key in gone:
        if key not in come:
            whole.pop(key, None)
    whole.update(come)


class _Minors(Iterator[int]):
    """The class minors that are free, lowest first."""

    def __init__(self) -> None:
        self._next, self._end = OTHER_TRAFFIC_MINOR + 1, OTHER_TRAFFIC_MINOR + 1
        self._free: list[int] = []
        self._resting: list[int] = []

    def __len__(self) -> int:
        return len(self._free) + max(self._end - self._next, 0)

    def __next__(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        if self._next >= self._end:
            raise StopIteration
        self._next += 1
        return self._next - 1

    def adopt(self, marked: Collection[int], left: Iterable[int]) -> None:
        """Before any is given out: those `marked` are not free, and those `left` of them rest."""
        self._next = max(marked, default=OTHER_TRAFFIC_MINOR) + 1
        self._free = [minor for minor in range(OTHER_TRAFFIC_MINOR + 1, self._next) if minor not in marked]
        self._resting = list(left)

    def release(self, minor: int) -> None:
        """Give a minor back. It rests for an update: its marks may still be in the kernel."""
        self._resting.append(minor)

    def end_of_rest(self, last: int) -> None:
        """What was given back so far is free; `last` is the largest minor there may be."""
        self._end = last + 1
        for minor in self._resting:
            heapq.heappush(self._free, minor)
        self._resting.clear()
