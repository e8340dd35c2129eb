"""Brings the kernel to the plan at each step: decides what to apply, what to try again, and when to read everything.

* A change of the plan is reconciled at once, incrementally: only its own shares are touched.
* HTB is installed and removed by a full reconcile, at once.
* What the kernel refuses for one share is tried again with a back-off of its own and delays no other share.
* If HTB itself is refused, every change waits for its back-off. No subflow is throttled then, so none has to be freed.
* A full reconcile follows a notification of the kernel, a quick check that fails, and a refusal; it is also periodic.

Nothing is logged or counted here: `Applied` says what has happened in a step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from mptcp_throttled.enforcing.reconcile_times import ReconcileTimes
from mptcp_throttled.enforcing.reconciler import Kernel, Outcome, Reconciler
from mptcp_throttled.enforcing.refused_objects import KernelObject, ObjectKind, without
from mptcp_throttled.enforcing.retries import Retries
from mptcp_throttled.plan.planner import PlanDelta, Planner
from mptcp_throttled.vocabulary import operations as op
from mptcp_throttled.vocabulary.applied import Applied
from mptcp_throttled.vocabulary.clock import Clock
from mptcp_throttled.vocabulary.kernel_plan import UNTOUCHED, KernelPlan

_NO_MINOR: Final = 0


@dataclass(slots=True)
class _StepNotes:
    """What has happened in the step that is in progress, as in `Applied`."""

    retried: frozenset[int] = frozenset()
    is_full: bool = False
    repairs: tuple[op.Operation, ...] = ()
    durations: list[float] = field(default_factory=list)


class Keeper:
    """Brings the kernel to the plan of `planner`. For one thread."""

    def __init__(self, kernel: Kernel, planner: Planner, clock: Clock) -> None:
        self._planner = planner
        self._clock = clock
        self._reconciler = Reconciler(kernel)
        self._retries = Retries()
        self._unverified: set[KernelObject] = set()
        self._blocked: frozenset[KernelObject] = frozenset()
        self._times = ReconcileTimes(clock.monotonic())
        self._interval = 0.0
        self._applied = UNTOUCHED
        self._errors: tuple[str, ...] = ()
        self._left_out: tuple[str, ...] = ()
        self._without_qdisc = False
        self.htb_refused = False
        """Whether HTB could not be installed or removed: no subflow can be throttled."""
        self.looked_at = -math.inf
        """When the last quick check or full reconcile began, in monotonic seconds."""

    @property
    def refused_minors(self) -> frozenset[int]:
        """The classes that the kernel refuses."""
        return self._retries.refused_minors

    @property
    def next_deadline(self) -> float:
        """When the next step is due even if the plan does not change, in monotonic seconds."""
        return min(self._times.due, self._times.quick_check_due, self._retries.next_due)

    def note_kernel_change(self) -> None:
        """Another program has changed something in the kernel: the next step reconciles fully, or soon after."""
        self._times.changed()

    def step(self, delta: PlanDelta, interval: float) -> Applied:
        """Apply a change of the plan, and do what is due; nothing is read without a reason.

        `interval`, in seconds, is the time between two full reconciles, and the longest delay between two attempts.
        """
        self._interval = interval
        notes = _StepNotes()
        self._forget_unplanned(delta)
        is_due = self._clock.monotonic() >= self._times.due
        certain = True
        if delta.htb_changes or self._planner.plan.htb != self._applied.htb:
            # Freeing never waits; throttling waits if HTB itself has been refused.
            is_due = is_due or self._applied.htb or not self.htb_refused
        elif self._applied.htb:
            if not delta.empty:
                certain = self._increment(notes, delta.before, delta.after, frozenset())
            if not is_due and (due := self._retries.take_due(self._clock.monotonic())):
                certain &= self._retry(notes, due)
        if is_due or not certain or not self._seems_intact():
            self._reconcile_fully(notes, is_expected=not (certain and delta.empty))
        return Applied(
            self._applied,
            tuple(dict.fromkeys((*self._errors, *self._left_out, *self._retries.errors))),
            notes.retried,
            notes.is_full,
            notes.repairs,
            tuple(notes.durations),
            self._without_qdisc,
        )

    def release(self) -> tuple[str, ...]:
        """Leave the kernel as it was found; what could not be restored."""
        return self._reconciler.full(UNTOUCHED).failures

    def _increment(
        self, notes: _StepNotes, before: KernelPlan, after: KernelPlan, due: frozenset[KernelObject]
    ) -> bool:
        """Reconcile a part of the plan, without refused objects that are not `due`; whether the outcome is certain."""
        began = self._clock.monotonic()
        present = self._applied.part_of(before, after)
        outcome = self._reconciler.incremental(present, self._permitted(after, due))
        self._applied = self._applied.replaced(present, outcome.applied)
        self._note_refused(outcome, due, began)
        notes.durations.append(self._clock.monotonic() - began)
        if outcome.errors or (outcome.refused and not due):
            # Perhaps the kernel refuses this because its state is not what we believe: a full reconcile finds out.
            self._unverified.update(outcome.refused)
            self._blocked |= outcome.blocked
            self._errors = tuple(dict.fromkeys((*self._errors, *outcome.errors)))
            self._times.changed()
        return outcome.certain

    def _retry(self, notes: _StepNotes, due: frozenset[KernelObject]) -> bool:
        assignments = self._planner.plan.assignments
        minors = {o.key if isinstance(o.key, int) else assignments.get(o.key, _NO_MINOR) for o in due}
        notes.retried = frozenset(minors)
        part = self._planner.part(minors)
        return self._increment(notes, part, part, due)

    def _reconcile_fully(self, notes: _StepNotes, *, is_expected: bool) -> None:
        """Reconcile fully. `is_expected`: this step knows why operations are needed; otherwise they are repairs."""
        plan = self._planner.plan
        began, used = self._clock.monotonic(), self._clock.processor_time()
        self.looked_at = began
        due = self._retries.take_due(began) | self._unverified
        self._unverified.clear()
        is_expected |= bool(due or self._errors or self.htb_refused)
        outcome = self._reconciler.full(self._permitted(plan, due))
        is_unblocked = bool(self._blocked) and not outcome.blocked
        self._blocked = outcome.blocked
        self._applied = outcome.applied.persistent()
        self._left_out, self._without_qdisc = outcome.left_out, outcome.without_qdisc
        obstacle = () if outcome.obstacle is None else (outcome.obstacle,)
        self.htb_refused = outcome.obstacle is not None or plan.htb != outcome.applied.htb
        if outcome.applied.htb:
            self._errors = (*obstacle, *outcome.errors)
            self._note_refused(outcome, due, began)
        else:
            # Without HTB nothing can be retried by itself: what was refused tells why HTB is missing.
            self._errors = (*obstacle, *outcome.failures)
            self._retries, self._blocked = Retries(), frozenset()
        if not is_expected:
            notes.repairs = outcome.done
        notes.is_full |= bool(outcome.done or outcome.refused or outcome.errors or is_expected)
        # Only processor time counts: on a busy machine the full reconciles need not become rarer.
        ended, used = self._clock.monotonic(), self._clock.processor_time() - used
        notes.durations.append(ended - began)
        trouble = bool(notes.repairs or self._errors) or self.htb_refused
        self._times.reconciled(ended - used, ended, self._interval, trouble=trouble)
        if is_unblocked:
            self._times.changed()

    def _permitted(self, plan: KernelPlan, due: Collection[KernelObject]) -> KernelPlan:
        """The plan without what is blocked, and without refused objects that are not `due`."""
        return without(plan, {*self._retries.waiting(due), *self._blocked})

    def _seems_intact(self) -> bool:
        """Whether no full reconcile is needed now: no quick check is due, it succeeds, or its failure must wait for a
        back-off."""
        began = self._clock.monotonic()
        if began < self._times.quick_check_due:
            return True
        self.looked_at = began
        is_intact = self._reconciler.quick_check(self._applied)
        self._times.quick_checked(began, self._clock.monotonic(), self._interval)
        if not is_intact:
            self._times.changed()
        return is_intact or began < self._times.due

    def _note_refused(self, outcome: Outcome, due: Iterable[KernelObject], began: float) -> None:
        self._retries.attempted(due, outcome.refused, began, self._clock.monotonic(), self._interval)

    def _forget_unplanned(self, delta: PlanDelta) -> None:
        if not self._retries:
            return
        before, after = delta.before, delta.after
        self._retries.forget(KernelObject(ObjectKind.CLASS, m) for m in before.classes if m not in after.classes)
        ended = [ends for ends in before.assignments if ends not in after.assignments]
        for kind in (ObjectKind.ASSIGNMENT, ObjectKind.PACE):
            self._retries.forget(KernelObject(kind, ends) for ends in ended)
