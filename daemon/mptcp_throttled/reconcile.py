"""Make the kernel match the plan: compare, change what differs in a safe order, read back.

Level-triggered: an event, a manual `tc qdisc del` and the periodic audit all lead to the same comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from mptcp_throttled.kernel_state import KernelError, KernelState
from mptcp_throttled.operations import (
    AddClass,
    ChangeClass,
    ChangeMarks,
    DeleteClass,
    InstallHtb,
    Operation,
    RemoveChain,
    RestoreQdisc,
)
from mptcp_throttled.plan import UNTOUCHED, KernelPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mptcp_throttle.units import Rate

_IP_VERSIONS: Final = (4, 6)


class Kernel(Protocol):
    """The kernel as reconciliation sees it. Both methods raise KernelError."""

    def read(self) -> KernelState:
        """What is there now."""

    def apply(self, operation: Operation) -> None:
        """Carry one operation out, wholly or not at all."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What reconciliation did: `in_force` is the part of the plan that was read back from the kernel."""

    done: tuple[Operation, ...]
    errors: tuple[str, ...]
    in_force: KernelPlan


def diff(actual: KernelState, plan: KernelPlan) -> tuple[Operation, ...]:
    """The operations that lead from `actual` to `plan`, in an order that is safe to be interrupted anywhere.

    Capping: qdisc before class before mark. Lifting: mark before class before qdisc. A mark never names a class
    that is not there.
    """
    return tuple(_diff(actual, plan))


def _diff(actual: KernelState, plan: KernelPlan) -> Iterator[Operation]:
    if not plan.htb:
        for version in actual.chains:
            yield RemoveChain(version)
        if actual.htb is not None:
            yield RestoreQdisc()
        return
    stray = [version for version, chain in actual.chains.items() if chain.stray]
    for version in stray:
        yield RemoveChain(version)
    chains = {version: chain for version, chain in actual.chains.items() if version not in stray}
    htb = actual.htb
    if htb is not None and (htb.default_minor != plan.default_minor or not htb.filtered):
        yield RestoreQdisc()
        htb = None
    classes: Mapping[int, Rate | None] = {} if htb is None else htb.classes
    if htb is None:
        yield InstallHtb(plan.default_minor)
    for minor, rate in plan.classes.items():
        if minor not in classes:
            yield AddClass(minor, rate)
        elif classes[minor] != rate:
            yield ChangeClass(minor, rate)
    for version in _IP_VERSIONS:
        wanted = {ends: minor for ends, minor in plan.marks.items() if ends.client.address.version == version}
        present = chains[version].marks if version in chains else {}
        add = dict(wanted.items() - present.items())
        remove = dict(present.items() - wanted.items())
        if add or remove:
            yield ChangeMarks(version, add, remove)
    for minor in classes:
        if minor not in plan.classes:
            yield DeleteClass(minor)


class Reconciler:
    """Owns the kernel: the one place where operations are carried out."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def converge(self, plan: KernelPlan) -> Outcome:
        """Bring the kernel to `plan` as far as it lets us; what fails leaves its subflows uncapped."""
        errors: list[str] = []
        done: list[Operation] = []
        try:
            operations = diff(self._kernel.read(), plan)
            plan = self._carry_out(operations, plan, done, errors)
            if operations:
                remaining = diff(self._kernel.read(), plan)
                errors += [f"not in force after it was applied: {operation}" for operation in remaining]
        except KernelError as error:
            return Outcome(tuple(done), (*errors, str(error)), UNTOUCHED)
        return Outcome(tuple(done), tuple(errors), plan)

    def _carry_out(
        self, operations: tuple[Operation, ...], plan: KernelPlan, done: list[Operation], errors: list[str]
    ) -> KernelPlan:
        for planned in operations:
            operation = _without_unplanned(planned, plan)
            try:
                self._kernel.apply(operation)
            except KernelError as error:
                errors.append(str(error))
                if isinstance(operation, InstallHtb):
                    return UNTOUCHED
                plan = _without(operation, plan)
            else:
                done.append(operation)
        return plan


def _without(failed: Operation, plan: KernelPlan) -> KernelPlan:
    """The part of the plan that can still be had: a subflow without its class or mark is left alone."""
    match failed:
        case AddClass(minor=minor):
            classes = {m: rate for m, rate in plan.classes.items() if m != minor}
            return replace(plan, classes=classes, marks={ends: m for ends, m in plan.marks.items() if m != minor})
        case ChangeMarks(ip_version=version):
            marks = {ends: m for ends, m in plan.marks.items() if ends.client.address.version != version}
            return replace(plan, marks=marks)
        case _:
            return plan


def _without_unplanned(operation: Operation, plan: KernelPlan) -> Operation:
    if isinstance(operation, ChangeMarks):
        return replace(operation, add={ends: m for ends, m in operation.add.items() if ends in plan.marks})
    return operation
