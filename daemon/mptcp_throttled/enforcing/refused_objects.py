"""The kernel objects that can be refused one by one, each for the subflows of one share."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

from mptcp_throttle.model import FourTuple
from mptcp_throttled.vocabulary import operations as op
from mptcp_throttled.vocabulary.kernel_plan import KernelPlan


class ObjectKind(StrEnum):
    """What an object is."""

    CLASS = "class"
    ASSIGNMENT = "assignment"
    PACE = "pace"


class KernelObject(NamedTuple):
    """A class, known by its minor, or the assignment or the pace of a subflow."""

    kind: ObjectKind
    key: int | FourTuple


def objects_of(operation: op.Operation) -> set[KernelObject]:
    """The objects that are missing if an operation is refused; none if it adds no object of a single share."""
    match operation:
        case op.AddClass(minor=minor) | op.ChangeClass(minor=minor):
            return {KernelObject(ObjectKind.CLASS, minor)}
        case op.MakeAssignments(assignments=add) | op.ChangeAssignments(add=add):
            return {KernelObject(ObjectKind.ASSIGNMENT, ends) for ends in add}
        case op.ChangePaces(add=add):
            return {KernelObject(ObjectKind.PACE, ends) for ends in add}
        case _:
            return set()


def blocked_by(operation: op.Operation) -> set[KernelObject]:
    """The classes that must be deleted if an operation is refused: assignments to them could not be removed.

    An assignment whose class does not exist throttles no subflow.
    """
    match operation:
        case op.ChangeAssignments(remove=remove):
            return {KernelObject(ObjectKind.CLASS, minor) for minor in remove.values()}
        case _:
            return set()


def without(plan: KernelPlan, refused: Collection[KernelObject]) -> KernelPlan:
    """The plan without these objects and what depends on them: a subflow without its class or its assignment is free.

    A class goes too if none of its assignments is left.
    """
    if not refused:
        return plan
    gone = {key for _, key in refused if isinstance(key, int)}
    lost = {key for kind, key in refused if kind is ObjectKind.ASSIGNMENT and not isinstance(key, int)}
    unpaced = {key for kind, key in refused if kind is ObjectKind.PACE}
    assignments = plan.assignments
    if lost:
        assignments = {ends: minor for ends, minor in assignments.items() if ends not in lost}
        gone |= {plan.assignments[ends] for ends in lost if ends in plan.assignments} - set(assignments.values())
    assignments = {ends: minor for ends, minor in assignments.items() if minor not in gone}
    paces = {ends: pace for ends, pace in plan.paces.items() if ends in assignments and ends not in unpaced}
    classes = {minor: rate for minor, rate in plan.classes.items() if minor not in gone}
    return KernelPlan(plan.htb, plan.default_minor, classes, assignments, paces)
