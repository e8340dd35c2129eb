"""Make the kernel match the plan: compare, change what differs in a safe order, read back.

Level-triggered: an event, a manual `tc qdisc del` and the periodic audit all lead to the same comparison.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttled.desired.kernel_plan import UNTOUCHED, KernelPlan
from mptcp_throttled.reconcile.kernel_state import (
    IP_VERSIONS,
    ChainState,
    HtbState,
    KernelState,
    PacingState,
    QdiscState,
    QuickCheck,
)
from mptcp_throttled.reconcile.operations import (
    AddClass,
    ChangeClass,
    ChangeMarks,
    ChangePaces,
    ClassOperation,
    DeleteClass,
    InstallHtb,
    MakeChain,
    Operation,
    OtherOperation,
    RemoveChain,
    RestoreQdisc,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from mptcp_throttle.model import FourTuple
    from mptcp_throttle.units import Rate

_READ_ATTEMPTS: Final = 3

K = TypeVar("K")
V = TypeVar("V")
W = TypeVar("W")


class Kernel(Protocol):
    """The kernel as reconciliation sees it. All methods raise KernelError."""

    def read(self) -> KernelState:
        """What is there now."""

    def quick_check(self) -> QuickCheck:
        """How much is there now, of what changes without a notification."""

    def apply(self, operation: OtherOperation) -> None:
        """Carry one operation out, wholly or not at all."""

    def change_classes(self, operations: Sequence[ClassOperation]) -> list[KernelError | None]:
        """Carry each of them out, in order, wholly or not at all; for each, why it was refused."""

    def fail_open(self) -> None:
        """Hold nobody to any rate, without looking at the rules: put the root qdisc back if it is ours."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What reconciliation did: `in_force` is the part of the plan that was read back from the kernel.

    `obstacle` says why HTB cannot be put in, `unpaced` why sockets cannot be paced, whatever the plan asks for.
    `compared`: the whole kernel was read for it.
    """

    done: tuple[Operation, ...]
    errors: tuple[str, ...]
    in_force: KernelPlan
    obstacle: str | None = None
    unpaced: str | None = None
    compared: bool = True

    @property
    def refusals(self) -> tuple[str, ...]:
        """All that keeps the plan from being in force as a whole."""
        return (*(() if self.obstacle is None else (self.obstacle,)), *self.errors)


def diff(actual: KernelState, plan: KernelPlan) -> tuple[Operation, ...]:
    """The operations that lead from `actual` to `plan`, in an order that is safe to be interrupted anywhere.

    Capping: pace before qdisc before class before mark. Lifting: mark before pace before class before qdisc. A mark
    never names a class that is not there, and no socket feeds a class faster than it drains.
    """
    return tuple(_diff(actual, plan))


def _diff(actual: KernelState, plan: KernelPlan) -> Iterator[Operation]:
    for interface in actual.qdisc.pending_elsewhere:
        yield RestoreQdisc(interface)
    htb, paces = actual.qdisc.htb, actual.pacing.paces or {}
    freed = {ends: rate for ends, rate in paces.items() if ends not in plan.paces}
    if not plan.htb:
        for version in actual.chains:
            yield RemoveChain(version)
        if freed:
            yield ChangePaces({}, freed)
        if htb is not None or actual.qdisc.restore_pending:
            yield RestoreQdisc()
        return
    slowed = _differing(plan.paces, paces)
    if slowed and actual.pacing.paces is not None:
        yield ChangePaces(slowed, {})
    marks = {version: _of_version(plan.marks, version) for version in IP_VERSIONS}
    for version, chain in actual.chains.items():
        if chain.altered and not marks[version]:
            yield RemoveChain(version)
    chains = {version: chain for version, chain in actual.chains.items() if not chain.altered}
    if htb is not None and (htb.default_minor != plan.default_minor or not htb.filtered):
        yield RestoreQdisc()
        htb = None
    classes: Mapping[int, Rate | None] = {} if htb is None else htb.classes
    if htb is None:
        yield InstallHtb(plan.default_minor)
    for minor, rate in _differing(plan.classes, classes).items():
        if minor in classes:
            yield ChangeClass(minor, rate, mend=classes[minor] is None)
        else:
            yield AddClass(minor, rate)
    for version, wanted in marks.items():
        if version not in chains:
            if wanted:
                yield MakeChain(version, wanted)
            continue
        present = chains[version].marks
        add, remove = _differing(wanted, present), _differing(present, wanted)
        if add or remove:
            yield ChangeMarks(version, add, remove)
    if freed:
        yield ChangePaces({}, freed)
    for minor in classes:
        if minor not in plan.classes:
            yield DeleteClass(minor)


def _differing(these: Mapping[K, V], those: Mapping[K, W]) -> dict[K, V]:
    """Of `these`, what is not the same in `those`."""
    # Nothing at all, nearly always: Python compares dictionaries ten times as fast as it goes through them.
    return {} if these == those else {key: value for key, value in these.items() if those.get(key) != value}


class Reconciler:
    """Owns the kernel: the one place where operations are carried out."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        # As last read: what of it is not ours to plan.
        self._pacing = PacingState()
        self._chains: set[int] = set()

    def converge(self, plan: KernelPlan) -> Outcome:
        """Bring the kernel to `plan` as far as it lets us; what fails leaves its subflows uncapped.

        Where an operation fails, the plan without what depends on it is tried next, and if anybody is still held to a
        rate he should not be held to, nobody is to be held to any.
        """
        done: list[Operation] = []
        errors: list[str] = []
        look = partial(self._read, to_hold=plan.htb)
        try:
            state = look()
            obstacle = state.qdisc.obstacle
            if state.pacing.paces is None:
                plan = replace(plan, paces={})
            wanted = UNTOUCHED if plan.htb and obstacle is not None else plan
            state, wanted = self._attempt(look, state, wanted, done, errors)
            if errors:
                state, wanted = self._attempt(look, state, wanted, done, errors)
                if _wrongly_held(state, wanted):
                    state, wanted = self._attempt(look, state, UNTOUCHED, done, errors)
                if _wrongly_held(state, wanted):
                    errors += self._let_go()
                    state = look()
        except KernelError as error:
            return Outcome(tuple(done), tuple(dict.fromkeys([*errors, str(error), *self._let_go()])), UNTOUCHED)
        self._pacing, self._chains = state.pacing, set(state.chains)
        in_force = plan if wanted is plan and not errors else _in_force(state, plan)
        return Outcome(tuple(done), tuple(dict.fromkeys(errors)), in_force, obstacle, state.pacing.problem)

    def advance(self, plan: KernelPlan, before: KernelPlan, after: KernelPlan) -> Outcome:
        """Bring the kernel to `plan` from one that is in force as a whole, where only `before` is to become `after`.

        What the kernel acknowledges is taken for done until it is compared again; what it refuses is left to
        `converge`.
        """
        done: list[Operation] = []
        for operations in _grouped(diff(_as_state(before, self._pacing, self._chains), after)):
            refusals = self._apply(operations)
            done += (operation for operation, refusal in zip(operations, refusals, strict=True) if refusal is None)
            refused = [str(refusal) for refusal in refusals if refusal is not None]
            if refused:
                outcome = self.converge(plan)
                errors = tuple(dict.fromkeys([*refused, *outcome.errors]))
                return replace(outcome, done=(*done, *outcome.done), errors=errors)
        self._chains |= {ends.client.address.version for ends in after.marks}
        in_force = plan if self._pacing.paces is not None else replace(plan, paces={})
        return Outcome(tuple(done), (), in_force, None, self._pacing.problem, compared=False)

    def quick_check(self, plan: KernelPlan) -> bool:
        """Whether a plan that is in force as a whole seems to be so still: the look takes as long for one as for all.

        Of tc nothing is looked at: who changes that is notified of (kernel/notifications.py). That somebody has put as
        many other marks in the place of ours is left to be found by `converge`.
        """
        try:
            seen = self._kernel.quick_check()
        except KernelError:
            return False
        paced = None if seen.pacing.paces is None else len(seen.pacing.paces)
        planned = None if self._pacing.paces is None else len(plan.paces)
        counts = seen.marks.values()
        return (
            seen.marks.keys() == self._chains
            and None not in counts
            and sum(filter(None, counts)) == len(plan.marks)
            and (paced, seen.pacing.problem) == (planned, self._pacing.problem)
        )

    def _attempt(
        self,
        look: Callable[[], KernelState],
        state: KernelState,
        wanted: KernelPlan,
        done: list[Operation],
        errors: list[str],
    ) -> tuple[KernelState, KernelPlan]:
        operations = diff(state, wanted)
        if not operations:
            return state, wanted
        before = len(errors)
        wanted = self._carry_out(operations, wanted, done, errors)
        if len(errors) == before and all(isinstance(operation, ChangePaces) for operation in operations):
            return state, wanted  # nobody else changes paces, and what is read of them is what we have put there
        state = look()
        if len(errors) == before:
            errors += [f"not in force after it was applied: {operation}" for operation in diff(state, wanted)]
        return state, wanted

    def _carry_out(
        self, operations: tuple[Operation, ...], plan: KernelPlan, done: list[Operation], errors: list[str]
    ) -> KernelPlan:
        for group in _grouped(operations):
            carried_out = tuple(_without_unplanned(operation, plan) for operation in group)
            for operation, refusal in zip(carried_out, self._apply(carried_out), strict=True):
                if refusal is None:
                    done.append(operation)
                    continue
                errors.append(str(refusal))
                if isinstance(operation, InstallHtb) or (operation == RestoreQdisc() and plan.htb):
                    return UNTOUCHED
                plan = _without(operation, plan)
        return plan

    def _apply(self, operations: Sequence[Operation]) -> list[KernelError | None]:
        """Carry out operations on classes, or a single other one; for each, why it was refused."""
        classes = [operation for operation in operations if isinstance(operation, ClassOperation)]
        if classes:
            return self._kernel.change_classes(classes)
        (operation,) = (operation for operation in operations if not isinstance(operation, ClassOperation))
        try:
            self._kernel.apply(operation)
        except KernelError as error:
            return [error]
        return [None]

    def _read(self, *, to_hold: bool) -> KernelState:
        state = self._try_to_read()
        # Where HTB is to be and something is in its way, to put back what was there before would put it in the way of
        # somebody else, who would take it for ours. It stays on record.
        return replace(state, qdisc=replace(state.qdisc, restore_pending=False)) if to_hold else state

    def _try_to_read(self) -> KernelState:
        for _ in range(_READ_ATTEMPTS - 1):
            with suppress(KernelError):
                return self._kernel.read()
        return self._kernel.read()

    def _let_go(self) -> list[str]:
        try:
            self._kernel.fail_open()
        except KernelError as error:
            return [str(error)]
        return []


def _grouped(operations: Sequence[Operation]) -> Iterator[tuple[Operation, ...]]:
    """The operations in order, those on classes that follow each other together."""
    for on_classes, group in groupby(operations, lambda operation: isinstance(operation, ClassOperation)):
        if on_classes:
            yield tuple(group)
        else:
            yield from ((operation,) for operation in group)


def _without(failed: Operation, plan: KernelPlan) -> KernelPlan:
    """The part of the plan that can still be had: a subflow without its class or mark is left alone.

    Where marks cannot be changed, the classes that they lead to are given up: a mark without a class holds nobody.
    """
    match failed:
        case AddClass(minor=minor) | ChangeClass(minor=minor):
            return _without_classes({minor}, plan)
        case MakeChain(marks=add):
            return _without_marks(add, plan)
        case ChangeMarks(add=add, remove=remove) if not remove:
            return _without_marks(add, plan)
        case ChangeMarks(ip_version=version, remove=remove):
            return _without_classes({*_of_version(plan.marks, version).values(), *remove.values()}, plan)
        case RemoveChain(ip_version=version):
            return _without_classes(set(_of_version(plan.marks, version).values()), plan)
        case _:
            return plan


def _without_marks(refused: Mapping[FourTuple, int], plan: KernelPlan) -> KernelPlan:
    marks = {ends: minor for ends, minor in plan.marks.items() if ends not in refused}
    return _without_classes(set(refused.values()) - set(marks.values()), replace(plan, marks=marks))


def _without_classes(minors: set[int], plan: KernelPlan) -> KernelPlan:
    marks = {ends: minor for ends, minor in plan.marks.items() if minor not in minors}
    return replace(
        plan,
        classes={minor: rate for minor, rate in plan.classes.items() if minor not in minors},
        marks=marks,
        paces={ends: rate for ends, rate in plan.paces.items() if ends in marks},
    )


def _without_unplanned(operation: Operation, plan: KernelPlan) -> Operation:
    match operation:
        case MakeChain(marks=marks):
            return replace(operation, marks={ends: m for ends, m in marks.items() if ends in plan.marks})
        case ChangeMarks(add=add):
            return replace(operation, add={ends: m for ends, m in add.items() if ends in plan.marks})
        case _:
            return operation


def _as_state(plan: KernelPlan, pacing: PacingState, chains_present: Collection[int]) -> KernelState:
    """The kernel in which a plan is in force."""
    chains = {version: ChainState(_of_version(plan.marks, version)) for version in chains_present}
    if pacing.paces is not None:
        pacing = PacingState(plan.paces)
    return KernelState(QdiscState(HtbState(plan.default_minor, True, plan.classes)), chains, pacing)


def _of_version(marks: Mapping[FourTuple, int], version: int) -> dict[FourTuple, int]:
    return {ends: minor for ends, minor in marks.items() if ends.client.address.version == version}


def _wrongly_held(state: KernelState, wanted: KernelPlan) -> bool:
    """Whether any mark leads to a class that is not the planned one, or has not the planned rate."""
    if state.qdisc.htb is None or not state.qdisc.htb.filtered:
        return False
    classes = state.qdisc.htb.classes
    marks = (mark for chain in state.chains.values() for mark in chain.marks.items())
    return any(
        minor in classes and (wanted.marks.get(ends) != minor or classes[minor] != wanted.classes.get(minor))
        for ends, minor in marks
    )


def _in_force(state: KernelState, plan: KernelPlan) -> KernelPlan:
    htb = state.qdisc.htb
    if htb is None or not htb.filtered or not plan.htb:
        return UNTOUCHED
    classes = {minor: rate for minor, rate in plan.classes.items() if htb.classes.get(minor) == rate}
    present = {ends: m for chain in state.chains.values() if not chain.altered for ends, m in chain.marks.items()}
    marks = {ends: m for ends, m in plan.marks.items() if m in classes and present.get(ends) == m}
    known = state.pacing.paces or {}
    paces = {ends: rate for ends, rate in plan.paces.items() if ends in marks and known.get(ends) == rate}
    return replace(plan, classes=classes, marks=marks, paces=paces)
