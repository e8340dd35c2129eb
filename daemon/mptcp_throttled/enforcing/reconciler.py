"""Makes the kernel match the plan: fully (read, diff, apply, read back) or incrementally (apply what has changed).

It is level-triggered: a JOIN, a `tc qdisc del` by hand, a retry and a periodic full reconcile lead to the same diff.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby
from typing import Final, Protocol

from immutables import Map

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttled.enforcing.diff import after, diff
from mptcp_throttled.enforcing.refused_objects import KernelObject, ObjectKind, blocked_by, objects_of, without
from mptcp_throttled.vocabulary import operations as op
from mptcp_throttled.vocabulary.kernel_plan import UNTOUCHED, KernelPlan
from mptcp_throttled.vocabulary.kernel_state import KernelState, PacingState, QuickCheck, state_of

_READ_ATTEMPTS: Final = 3


class Kernel(Protocol):
    """The kernel as the reconciler sees it. All methods raise KernelError."""

    def read(self) -> KernelState:
        """Read all our objects."""

    def quick_check(self) -> QuickCheck:
        """Count our objects whose changes the kernel does not notify us of."""

    def apply(self, operation: op.OtherOperation) -> None:
        """Apply one operation, wholly or not at all."""

    def change_classes(self, operations: Sequence[op.ClassOperation]) -> list[KernelError | None]:
        """Apply each of these, in order, wholly or not at all; for each, why it was refused, None if it was not."""

    def fail_open(self) -> None:
        """Free all subflows without reading assignments: restore the root qdisc if it is ours."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a reconcile did, and the part of the plan that the kernel has now.

    `refused` has each object that is not as planned, and why. `errors` are those of operations that concern no single
    share. `blocked` are the classes that must not exist until a full reconcile has removed their assignments.
    `obstacle` is why HTB cannot be installed, `left_out` why interfaces have none. `without_qdisc`: no interface can
    have HTB, and paces hold caps instead. Not `certain`: an incremental reconcile may have left a subflow throttled
    that should be free, and a full one must follow at once.
    """

    done: tuple[op.Operation, ...]
    applied: KernelPlan
    refused: Mapping[KernelObject, str] = field(default_factory=Map)
    errors: tuple[str, ...] = ()
    blocked: frozenset[KernelObject] = frozenset()
    obstacle: str | None = None
    left_out: tuple[str, ...] = ()
    without_qdisc: bool = False
    certain: bool = True

    @property
    def failures(self) -> tuple[str, ...]:
        """Why the kernel refused operations, each text once."""
        return tuple(dict.fromkeys((*self.errors, *self.refused.values())))


@dataclass(slots=True)
class _Progress:
    """What has happened to the operations of a reconcile that is in progress."""

    done: list[op.Operation] = field(default_factory=list)
    refused: dict[KernelObject, str] = field(default_factory=dict)
    errors: dict[str, None] = field(default_factory=dict)
    blocked: set[KernelObject] = field(default_factory=set)

    @property
    def failed(self) -> bool:
        return bool(self.refused or self.errors)

    def refuse(self, operation: op.Operation, error: str) -> set[KernelObject]:
        """Note why an operation was refused; the objects that the plan must do without."""
        missing, blocked = objects_of(operation), blocked_by(operation)
        self.refused.update(dict.fromkeys(missing, error))
        self.blocked |= blocked
        if blocked or not missing:
            self.errors[error] = None
        return missing | blocked


class Reconciler:
    """Applies operations to the kernel; nothing else does. For one thread."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        # The parts of the last state read that no plan contains.
        self._pacing = PacingState()
        self._without_qdisc = False
        self._made: frozenset[int] = frozenset()

    def full(self, plan: KernelPlan) -> Outcome:
        """Bring the whole kernel to `plan` as far as it allows; an operation that fails leaves its subflows free.

        After a failure, the plan is tried again without what depends on the failed operation. If a subflow is still
        throttled then that should not be, all subflows are freed.
        """
        progress = _Progress()
        try:
            state = self._read(plan)
            obstacle = state.qdisc.obstacle
            self._pacing, self._without_qdisc = state.pacing, state.qdisc.without_qdisc
            plan = self._enforceable(plan)
            wanted = UNTOUCHED if plan.htb and obstacle is not None else plan
            state, wanted = self._attempt(plan, state, wanted, progress)
            if progress.failed:
                state, wanted = self._attempt(plan, state, wanted, progress)
                if _wrongly_throttled(state, wanted):
                    state, wanted = self._attempt(plan, state, UNTOUCHED, progress)
                if _wrongly_throttled(state, wanted):
                    progress.errors.update(self._fail_open())
                    state = self._read(plan)
        except KernelError as error:
            progress.errors.update({str(error): None, **self._fail_open()})
            return Outcome(tuple(progress.done), UNTOUCHED, Map(progress.refused), tuple(progress.errors))
        self._pacing, self._made = state.pacing, frozenset(state.assignments)
        applied = plan if wanted is plan and not progress.failed else _applied(state, plan)
        outcome = _outcome(progress, applied)
        left_out, without_qdisc = state.qdisc.left_out, state.qdisc.without_qdisc
        return replace(outcome, obstacle=obstacle, left_out=left_out, without_qdisc=without_qdisc)

    def incremental(self, applied: KernelPlan, wanted: KernelPlan) -> Outcome:
        """Bring the classes and subflows of a part of the plan from the state that is `applied` to the `wanted` one.

        Nothing is read: what the kernel acknowledges counts as applied until the next full reconcile.
        """
        wanted = self._enforceable(wanted)
        progress = _Progress()
        state, reachable = self._apply_diff(state_of(applied, self._pacing, self._made), wanted, progress)
        if progress.failed:
            # Remove what was applied for a subflow before one of its operations was refused.
            state, reachable = self._apply_diff(state, reachable, progress)
        self._made = frozenset(state.assignments)
        return replace(
            _outcome(progress, wanted if not progress.failed else _applied(state, wanted)),
            certain=not _wrongly_throttled(state, reachable),
        )

    def quick_check(self, applied: KernelPlan) -> bool:
        """Whether what was applied still seems to be there.

        Its time does not grow with the number of subflows, except with the classifier `rules`, which reads every rule.
        Qdiscs and classes are left out: the kernel notifies us of their changes (kernel/watch.py). An assignment that
        was changed in place does not change the count; a full reconcile finds it.
        """
        try:
            seen = self._kernel.quick_check()
        except KernelError:
            return False
        paced = None if seen.pacing.paces is None else len(seen.pacing.paces)
        expected = None if self._pacing.paces is None else len(applied.paces)
        counts = seen.assignments.values()
        return (
            seen.assignments.keys() == self._made
            and None not in counts
            and sum(filter(None, counts)) == len(applied.assignments)
            and (paced, seen.pacing.problem) == (expected, self._pacing.problem)
        )

    def _enforceable(self, plan: KernelPlan) -> KernelPlan:
        """The plan without paces if sockets cannot be paced; without subflows that have no pace if no interface can
        have HTB."""
        if self._pacing.paces is None:
            plan = replace(plan, paces=Map())
        if not self._without_qdisc:
            return plan
        unpaced = (ends for ends in plan.assignments if ends not in plan.paces)
        return without(plan, {KernelObject(ObjectKind.ASSIGNMENT, ends) for ends in unpaced})

    def _attempt(
        self, plan: KernelPlan, state: KernelState, wanted: KernelPlan, progress: _Progress
    ) -> tuple[KernelState, KernelPlan]:
        """Apply what differs and read the kernel again."""
        operations = diff(state, wanted)
        if not operations:
            return state, wanted
        reachable, all_done = self._apply(operations, wanted, progress)[1:]
        if all_done and all(isinstance(operation, op.ChangePaces) for operation in operations):
            return state, reachable  # no other program changes paces: there is no need to read them back
        state = self._read(plan)
        if all_done:
            for operation in diff(state, reachable):
                progress.refuse(operation, f"{type(operation).__name__}: acknowledged by the kernel, but not applied")
        return state, reachable

    def _apply_diff(
        self, state: KernelState, wanted: KernelPlan, progress: _Progress
    ) -> tuple[KernelState, KernelPlan]:
        """Apply what differs; the state to which the acknowledged operations lead, and the part that can be reached."""
        done, reachable, _ = self._apply(diff(state, wanted), wanted, progress)
        return reduce(after, done, state), reachable

    def _apply(
        self, operations: Sequence[op.Operation], plan: KernelPlan, progress: _Progress
    ) -> tuple[list[op.Operation], KernelPlan, bool]:
        """Apply operations in order, without those that a refusal has made pointless.

        Returns the operations that succeeded, the part of the plan that can still be reached, and whether nothing was
        refused.
        """
        done: list[op.Operation] = []
        all_done = True
        for group in _groups(operations):
            reachable = [reduced for operation in group if (reduced := _reachable(operation, plan)) is not None]
            missing: set[KernelObject] = set()
            for operation, refusal in zip(reachable, self._apply_group(reachable), strict=True):
                if refusal is None:
                    done.append(operation)
                    continue
                all_done = False
                missing |= progress.refuse(operation, str(refusal))
                if isinstance(operation, op.InstallHtb) or (operation == op.RestoreQdisc() and plan.htb):
                    progress.done += done
                    return done, UNTOUCHED, False
            plan = without(plan, missing)
        progress.done += done
        return done, plan, all_done

    def _apply_group(self, operations: Sequence[op.Operation]) -> list[KernelError | None]:
        """Apply operations on classes, or a single other operation; for each, why it was refused."""
        classes = [operation for operation in operations if isinstance(operation, op.ClassOperation)]
        if classes:
            return self._kernel.change_classes(classes)
        for operation in operations:
            if not isinstance(operation, op.ClassOperation):
                try:
                    self._kernel.apply(operation)
                except KernelError as error:
                    return [error]
        return [None] * len(operations)

    def _read(self, plan: KernelPlan) -> KernelState:
        state = self._try_to_read()
        # If another program has replaced our HTB, the saved qdisc would get in its way: it stays saved.
        return replace(state, qdisc=replace(state.qdisc, restore_pending=False)) if plan.htb else state

    def _try_to_read(self) -> KernelState:
        for _ in range(_READ_ATTEMPTS - 1):
            with suppress(KernelError):
                return self._kernel.read()
        return self._kernel.read()

    def _fail_open(self) -> dict[str, None]:
        try:
            self._kernel.fail_open()
        except KernelError as error:
            return {str(error): None}
        return {}


def _outcome(progress: _Progress, applied: KernelPlan) -> Outcome:
    refused: Map[KernelObject, str] = Map(progress.refused)
    errors, blocked = tuple(progress.errors), frozenset(progress.blocked)
    return Outcome(tuple(progress.done), applied, refused, errors, blocked)


def _groups(operations: Sequence[op.Operation]) -> Iterator[tuple[op.Operation, ...]]:
    """The operations in order, in groups: consecutive operations on classes, and single other ones."""
    for on_classes, group in groupby(operations, lambda operation: isinstance(operation, op.ClassOperation)):
        if on_classes:
            yield tuple(group)
        else:
            yield from ((operation,) for operation in group)


def _reachable(operation: op.Operation, plan: KernelPlan) -> op.Operation | None:
    """The operation without the assignments that are not in the plan any more; None if nothing is left of it."""
    match operation:
        case op.MakeAssignments(assignments=assignments):
            kept = {ends: minor for ends, minor in assignments.items() if ends in plan.assignments}
            return replace(operation, assignments=kept) if kept else None
        case op.ChangeAssignments(add=add, remove=remove):
            kept = {ends: minor for ends, minor in add.items() if ends in plan.assignments}
            return replace(operation, add=kept) if kept or remove else None
        case _:
            return operation


def _wrongly_throttled(state: KernelState, wanted: KernelPlan) -> bool:
    """Whether an assignment leads to another class than planned, or to a class with another rate than planned."""
    if state.qdisc.htb is None or not state.qdisc.htb.classifies:
        return False
    classes = state.qdisc.htb.classes
    assignments = (assignment for made in state.assignments.values() for assignment in made.assignments.items())
    return any(
        minor in classes and (wanted.assignments.get(ends) != minor or classes[minor] != wanted.classes.get(minor))
        for ends, minor in assignments
    )


def _applied(state: KernelState, plan: KernelPlan) -> KernelPlan:
    """The part of the plan that is in the kernel."""
    htb = state.qdisc.htb
    if htb is None or not htb.classifies or not plan.htb:
        return UNTOUCHED
    classes = {minor: rate for minor, rate in plan.classes.items() if htb.classes.get(minor) == rate}
    intact = (made.assignments for made in state.assignments.values() if not made.altered)
    present = {ends: minor for assignments in intact for ends, minor in assignments.items()}
    assignments = {ends: m for ends, m in plan.assignments.items() if m in classes and present.get(ends) == m}
    known = state.pacing.paces or {}
    paces = {ends: pace for ends, pace in plan.paces.items() if ends in assignments and known.get(ends) == pace}
    return replace(plan, classes=Map(classes), assignments=Map(assignments), paces=Map(paces))
