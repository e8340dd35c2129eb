"""Keeps the plan up to date: only the shares that a change concerns are planned again.

The plan always equals what `assign_classes` and `plan_for` make of all decisions, with the spare classes added. The
first plan adopts the assignments that an earlier instance has left in the kernel: their subflows stay in their classes.

The class of a share that has lingered becomes spare, up to a number of spare classes; a later new share gets it. To add
or delete a class, the kernel walks all classes (net/sched/sch_api.c, tc_bind_tclass); to change one, it does not.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from types import MappingProxyType
from typing import Final

from mptcp_throttle.model import FourTuple, Token
from mptcp_throttle.units import Rate
from mptcp_throttled.plan.class_minors import ClassMinors
from mptcp_throttled.plan.shares import PlanSettings, Slot, assign_classes, expiry, plan_for
from mptcp_throttled.vocabulary.decision import Decision, Previous, Share
from mptcp_throttled.vocabulary.kernel_plan import DRAIN_RATE, OTHER_TRAFFIC_MINOR, UNTOUCHED, KernelPlan
from mptcp_throttled.vocabulary.terms import PresentTerms

_EXPIRY_BATCH_SECONDS: Final = 0.02
_SHARES_PER_SPARE_CLASS: Final = 2


@dataclass(frozen=True, slots=True)
class PlanDelta:
    """What an update has changed: the part of the plan that it concerns, before and after.

    `htb_changes`: HTB itself is added, removed, or gets another default class, which the parts do not show.
    `decisions` are those for all subflows that the change concerns; None for a subflow that has ended.
    """

    before: KernelPlan
    after: KernelPlan
    htb_changes: bool
    decisions: Mapping[FourTuple, Decision | None]

    @property
    def empty(self) -> bool:
        """Whether the plan has not changed."""
        return not self.htb_changes and self.before == self.after


class Planner:
    """The shares and their classes, and `plan`, a value that never changes. For one thread."""

    def __init__(self) -> None:
        self.plan = UNTOUCHED
        self.slots: dict[Share, Slot] = {}
        self.without_class: dict[Share, None] = {}
        self._exhausted: Counter[str] = Counter()
        self._settings = PlanSettings(OTHER_TRAFFIC_MINOR, 0.0, None)
        self._terms = PresentTerms()
        self._members: dict[Share, dict[FourTuple, Decision]] = {}
        self._rates: dict[Share, Rate] = {}
        self._minors = ClassMinors(OTHER_TRAFFIC_MINOR + 1)
        self._timers: list[tuple[float, int]] = []
        self._shares: dict[int, Share] = {}
        self._spare: dict[int, None] = {}
        self._adopted: Mapping[FourTuple, int] = {}

    def adopt(self, assignments: Mapping[FourTuple, int]) -> None:
        """Call this before the first update: shares get the classes to which the kernel has assigned their subflows.

        No other share gets a class that any assignment names.
        """
        self._adopted = assignments

    def update(
        self,
        previous: Previous,
        present: Mapping[Token, Iterable[Decision]],
        terms: PresentTerms,
        now: float,
        settings: PlanSettings,
        refused: Collection[int] = (),
    ) -> PlanDelta:
        """Plan for connections with `previous` decisions and those of `present`, at `now` (monotonic seconds).

        `terms` have the rates. `refused` are the minors of classes that the kernel has refused: none of them is spare.
        """
        decisions: dict[FourTuple, Decision | None] = {d.subflow.ends: None for old in previous.values() for d in old}
        new = [decision for token in previous for decision in present.get(token, ())]
        self._minors.free_resting(settings.max_minor)
        concerned = self._concerned(previous, new, terms, now, settings)
        if not (previous or concerned or refused or self._adopted) and settings == self._settings:
            self._terms = terms
            nothing = plan_for({}, {}, {}, settings)
            return PlanDelta(nothing, nothing, False, {})

        root = self._root
        slots_before = slots = {share: self.slots[share] for share in concerned if share in self.slots}
        before = plan_for(self._members, self._rates, slots, self._settings)
        for old in previous.values():
            for decision in old:
                self._remove(decision)
        for decision in new:
            decisions[decision.subflow.ends] = decision
            if (share := decision.downlink.share) is not None:
                self._members.setdefault(share, {})[decision.subflow.ends] = decision
        self._take_rates(concerned, terms)
        wanted = [share for share in concerned if share in self._members]
        if self._adopted:
            slots = self._adopt(wanted, settings)
        slots = assign_classes(wanted, slots, now, settings, self._minors)
        no_longer_spare = self._take(concerned, slots, settings)
        newly_spare = {old.minor for old in slots_before.values() if old.minor in self._spare}
        no_longer_spare |= self._drop_spare(refused) - newly_spare
        newly_spare &= self._spare.keys()
        before = _with_spare(before, no_longer_spare)
        after = _with_spare(plan_for(self._members, self._rates, slots, settings), newly_spare)
        for share in wanted:
            decisions.update(self._members[share])
        self._settings = settings
        self.plan = self.plan.replaced(before, after) if self.slots else UNTOUCHED
        return PlanDelta(before, after, root != self._root, MappingProxyType(decisions))

    def part(self, minors: Collection[int]) -> KernelPlan:
        """The part of the plan about these classes, their shares, and the class of other traffic."""
        slots = {share: self.slots[share] for share in self._shares_with(minors)}
        part = plan_for(self._members, self._rates, slots, self._settings)
        return _with_spare(part, self._spare.keys() & minors)

    def members(self, minors: Iterable[int]) -> dict[FourTuple, Decision]:
        """The decisions for the subflows in these classes."""
        decisions: dict[FourTuple, Decision] = {}
        for share in self._shares_with(minors):
            decisions.update(self._members.get(share, {}))
        return decisions

    @property
    def errors(self) -> tuple[str, ...]:
        """The access networks without enough classes, a line for each."""
        allowed = f"mark_mask allows {self._settings.max_minor}"
        return tuple(f"no class left for all of {network}: {allowed}" for network in self._exhausted)

    @property
    def next_expiry(self) -> float | None:
        """When the plan changes by itself, in monotonic seconds; None: never. Changes within 20 ms come at once."""
        return self._timers[0][0] + _EXPIRY_BATCH_SECONDS if self._timers else None

    @property
    def _root(self) -> tuple[bool, int]:
        return bool(self.slots), OTHER_TRAFFIC_MINOR if self._settings.other_traffic is not None else 0

    def _concerned(
        self, previous: Previous, new: Iterable[Decision], terms: PresentTerms, now: float, settings: PlanSettings
    ) -> dict[Share, None]:
        """The shares to plan again: those of these decisions, those with another rate, those that have expired, and
        those without a class, as far as minors are free."""
        decisions = chain.from_iterable((*previous.values(), new))
        concerned = dict.fromkeys(share for d in decisions if (share := d.downlink.share) is not None)
        if terms is not self._terms:
            concerned.update((share, None) for share, rate in self._rates.items() if terms.rate(share) != rate)
        concerned.update(dict.fromkeys(self.slots if settings != self._settings else self._expired(now)))
        waiting = (share for share in self.without_class if share not in concerned)
        concerned.update(dict.fromkeys(islice(waiting, len(self._minors))))
        return concerned

    def _shares_with(self, minors: Iterable[int]) -> list[Share]:
        return [self._shares[minor] for minor in minors if minor in self._shares]

    def _adopt(self, shares: Iterable[Share], settings: PlanSettings) -> dict[Share, Slot]:
        assignments, self._adopted = self._adopted, {}
        assigned = set(assignments.values()) & set(range(OTHER_TRAFFIC_MINOR + 1, settings.max_minor + 1))
        left = set(assigned)
        slots = {}
        for share in shares:
            minor = next((assignments[ends] for ends in self._members[share] if assignments.get(ends) in left), None)
            if minor is not None:
                slots[share] = Slot(minor)
                left.remove(minor)
        self._minors.adopt(assigned, left)
        return slots

    def _remove(self, decision: Decision) -> None:
        if (share := decision.downlink.share) is not None:
            members = self._members[share]
            members.pop(decision.subflow.ends, None)
            if not members:
                del self._members[share]

    def _take_rates(self, concerned: Iterable[Share], terms: PresentTerms) -> None:
        """Take the rates of the shares concerned that have members; shares without members have none."""
        self._terms = terms
        for share in concerned:
            rate = terms.rate(share) if share in self._members else None
            if rate is None:
                self._rates.pop(share, None)
            else:
                self._rates[share] = rate

    def _take(self, concerned: Iterable[Share], slots: Mapping[Share, Slot], settings: PlanSettings) -> set[int]:
        """Give the shares concerned these slots; returns the classes that were spare and are used now."""
        used = set()
        for share in concerned:
            old, new = self.slots.pop(share, None), slots.get(share)
            self._count_without_class(share, without=new is None and share in self._members)
            if new is not None:
                self.slots[share] = new
                self._shares[new.minor] = share
                if new.minor in self._spare:
                    del self._spare[new.minor]
                    used.add(new.minor)
                at = expiry(new, settings.linger)
                if at is not None:
                    heapq.heappush(self._timers, (at, new.minor))
            if old is not None and new is None:
                del self._shares[old.minor]
                self._minors.release(old.minor)
                self._spare[old.minor] = None
        return used

    def _drop_spare(self, refused: Collection[int]) -> set[int]:
        """Drop refused spare classes, and those beyond the allowed number; returns the dropped ones."""
        dropped = self._spare.keys() & refused
        surplus = len(self._spare) - len(dropped) - len(self.slots) // _SHARES_PER_SPARE_CLASS
        dropped.update(islice((minor for minor in self._spare if minor not in dropped), max(surplus, 0)))
        for minor in dropped:
            del self._spare[minor]
        return dropped

    def _count_without_class(self, share: Share, *, without: bool) -> None:
        if share in self.without_class:
            del self.without_class[share]
            self._exhausted[share.network] -= 1
            if not self._exhausted[share.network]:
                del self._exhausted[share.network]
        if without:
            self.without_class[share] = None
            self._exhausted[share.network] += 1

    def _expired(self, now: float) -> Iterator[Share]:
        # A timer may be outdated, as its share has another time now, or none. To plan that share again does no harm.
        while self._timers and self._timers[0][0] <= now:
            _, minor = heapq.heappop(self._timers)
            if minor in self._shares:
                yield self._shares[minor]


def _with_spare(part: KernelPlan, minors: Collection[int]) -> KernelPlan:
    """A part of the plan with these spare classes added: no subflow sends through them."""
    if not minors:
        return part
    return replace(part, classes={**part.classes, **dict.fromkeys(minors, DRAIN_RATE)})
