"""Finds the operations that lead from a kernel state to a plan, in a safe order, and the state after an operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from immutables import Map

from mptcp_throttle.units import Rate
from mptcp_throttled.vocabulary import operations as op
from mptcp_throttled.vocabulary.kernel_plan import KernelPlan
from mptcp_throttled.vocabulary.kernel_state import IP_VERSIONS, AssignmentState, HtbState, KernelState, of_version

K = TypeVar("K")
V = TypeVar("V")
W = TypeVar("W")


def diff(observed: KernelState, plan: KernelPlan) -> tuple[op.Operation, ...]:
    """The operations that lead from `observed` to `plan`, in an order that may be interrupted after any of them.

    Throttling: pace, qdisc, class, assignment, in this order. Freeing: assignment, pace, class, qdisc.
    So an assignment never names a missing class, and no socket feeds a class faster than the class drains.
    """
    return tuple(_diff(observed, plan))


def _diff(observed: KernelState, plan: KernelPlan) -> Iterator[op.Operation]:
    for interface in observed.qdisc.pending_elsewhere:
        yield op.RestoreQdisc(interface)
    htb, paces = observed.qdisc.htb, observed.pacing.paces or {}
    unwanted_paces = {ends: pace for ends, pace in paces.items() if ends not in plan.paces}
    if not plan.htb:
        for version in observed.assignments:
            yield op.RemoveAssignments(version)
        if unwanted_paces:
            yield op.ChangePaces({}, unwanted_paces)
        if htb is not None or observed.qdisc.restore_pending:
            yield op.RestoreQdisc()
        return
    missing_paces = _missing(plan.paces, paces)
    if missing_paces and observed.pacing.paces is not None:
        yield op.ChangePaces(missing_paces, {})
    assignments = {version: of_version(plan.assignments, version) for version in IP_VERSIONS}
    for version, state in observed.assignments.items():
        if state.altered and not assignments[version]:
            yield op.RemoveAssignments(version)
    intact = {version: state.assignments for version, state in observed.assignments.items() if not state.altered}
    if htb is not None and (htb.default_minor != plan.default_minor or not htb.classifies):
        yield op.RestoreQdisc()
        htb = None
    classes: Mapping[int, Rate | None] = {} if htb is None else htb.classes
    if htb is None or not htb.complete:
        yield op.InstallHtb(plan.default_minor)
    for minor, rate in sorted(_missing(plan.classes, classes).items()):
        if minor in classes:
            yield op.ChangeClass(minor, rate, replace_leaf=classes[minor] is None)
        else:
            yield op.AddClass(minor, rate)
    for version, wanted in assignments.items():
        if version not in intact:
            if wanted:
                yield op.MakeAssignments(version, wanted)
            continue
        present = intact[version]
        add, remove = _missing(wanted, present), _missing(present, wanted)
        if add or remove:
            yield op.ChangeAssignments(version, add, remove)
    if unwanted_paces:
        yield op.ChangePaces({}, unwanted_paces)
    for minor in sorted(minor for minor in classes if minor not in plan.classes):
        yield op.DeleteClass(minor)


def _missing(wanted: Mapping[K, V], present: Mapping[K, W]) -> dict[K, V]:
    """What of `wanted` is not in `present`, or has another value there."""
    # Usually nothing is missing. To compare two dictionaries (assignments, parts of a plan) is ten times as fast as key
    # by key. A persistent map never equals a dictionary: classes and paces of a whole plan are compared one by one.
    if wanted == present:
        return {}
    return {key: value for key, value in wanted.items() if present.get(key) != value}


def after(state: KernelState, operation: op.Operation) -> KernelState:
    """The state after an operation that succeeded in `state`."""
    qdisc = state.qdisc
    match operation:
        case op.InstallHtb(default_minor):
            htb = HtbState(default_minor, True, _classes(state))
            return replace(state, qdisc=replace(qdisc, htb=htb, restore_pending=False))
        case op.RestoreQdisc(None):
            return replace(state, qdisc=replace(qdisc, htb=None, restore_pending=False))
        case op.RestoreQdisc(interface):
            pending = tuple(name for name in qdisc.pending_elsewhere if name != interface)
            return replace(state, qdisc=replace(qdisc, pending_elsewhere=pending))
        case op.AddClass(minor, rate) | op.ChangeClass(minor, rate):
            return _with_classes(state, _classes(state).set(minor, rate))
        case op.DeleteClass(minor):
            return _with_classes(state, _classes(state).delete(minor))
        case op.MakeAssignments(ip_version, assignments):
            return replace(state, assignments={**state.assignments, ip_version: AssignmentState(assignments)})
        case op.ChangeAssignments(ip_version, add, remove):
            assignments = _changed(state.assignments[ip_version].assignments, add, remove)
            return replace(state, assignments={**state.assignments, ip_version: AssignmentState(assignments)})
        case op.ChangePaces(add, remove):
            return replace(state, pacing=replace(state.pacing, paces=_changed(state.pacing.paces or {}, add, remove)))
        case op.RemoveAssignments(ip_version):
            return replace(state, assignments={v: s for v, s in state.assignments.items() if v != ip_version})


def _classes(state: KernelState) -> Map[int, Rate | None]:
    return Map() if state.qdisc.htb is None else Map(state.qdisc.htb.classes)


def _with_classes(state: KernelState, classes: Map[int, Rate | None]) -> KernelState:
    if state.qdisc.htb is None:
        raise ValueError("no class without HTB")
    return replace(state, qdisc=replace(state.qdisc, htb=replace(state.qdisc.htb, classes=classes)))


def _changed(whole: Mapping[K, V], add: Mapping[K, V], remove: Mapping[K, V]) -> dict[K, V]:
    return {key: value for key, value in whole.items() if key not in remove} | dict(add)
