"""A kernel in memory, for tests of pure code: it refuses what the real kernel would, and what it is told to."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mptcp_throttle.features import FeatureName
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttled.enforcing.diff import after
from mptcp_throttled.vocabulary.control_group import EndedConnection
from mptcp_throttled.vocabulary.features import Feature, FeatureState, Situation
from mptcp_throttled.vocabulary.kernel_state import KernelState, QuickCheck
from mptcp_throttled.vocabulary.operations import (
    AddClass,
    ChangeAssignments,
    ChangeClass,
    ChangePaces,
    ClassOperation,
    DeleteClass,
    InstallHtb,
    Operation,
    OtherOperation,
    RestoreQdisc,
)
from mptcp_throttled.vocabulary.traffic import ClosedSubflow

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mptcp_throttle.model import Ailment, FourTuple
    from mptcp_throttle.units import Rate


def apply(state: KernelState, operation: Operation) -> KernelState:
    """The state after the operation. Raises KernelError where the real kernel would."""
    problem = _problem(state, operation)
    if problem is not None:
        raise KernelError(f"{type(operation).__name__}: {problem}", errno.EINVAL)
    return after(state, operation)


def _problem(state: KernelState, operation: Operation) -> str | None:
    qdisc, classes = state.qdisc, _classes(state)
    match operation:
        case InstallHtb():
            is_possible = (qdisc.htb is None or not qdisc.htb.complete) and qdisc.obstacle is None
        case RestoreQdisc(None):
            is_possible = qdisc.htb is not None or qdisc.restore_pending
        case RestoreQdisc(interface):
            is_possible = interface in qdisc.pending_elsewhere
        case AddClass(minor):
            is_possible = qdisc.htb is not None and minor not in classes
        case ChangeClass(minor) | DeleteClass(minor):
            is_possible = minor in classes
        case ChangeAssignments(ip_version, _, remove):
            made = state.assignments.get(ip_version)
            is_possible = made is not None and remove.keys() <= made.assignments.keys()
        case ChangePaces():
            is_possible = state.pacing.paces is not None
        case _:
            is_possible = True
    return None if is_possible else f"not possible in {state}"


def throttled(state: KernelState) -> dict[FourTuple, Rate]:
    """The rate of every subflow whose assignment names a class that exists."""
    return {ends: rate for ends, minor in _marks(state) if (rate := _classes(state).get(minor)) is not None}


def dangling(state: KernelState) -> bool:
    """Whether any assignment names a class that does not exist."""
    return any(minor not in _classes(state) for _, minor in _marks(state))


def _classes(state: KernelState) -> Mapping[int, Rate | None]:
    return {} if state.qdisc.htb is None else state.qdisc.htb.classes


def _marks(state: KernelState) -> Iterator[tuple[FourTuple, int]]:
    return (assignment for of in state.assignments.values() for assignment in of.assignments.items())


class ModelFeature:
    """A feature that notes what it follows."""

    def __init__(self) -> None:
        self.situation = Situation()
        self.state = FeatureState()

    def follow(self, situation: Situation) -> None:
        self.situation = situation

    def release(self) -> tuple[str, ...]:
        self.situation = Situation()
        return ()


class ModelKernel:
    """`refuse` holds types of operations, operations, and what equals one; `reads_refused` counts reads to fail first.

    `applied` are the operations that succeeded, `reads` counts the times that everything was read.
    """

    def __init__(self, state: KernelState | None = None, *refuse: object, reads_refused: int = 0) -> None:
        self.state = state or KernelState()
        self.refuse = refuse
        self.reads_refused = reads_refused
        self.reads = 0
        self.quick_checks = 0
        self.applied: list[Operation] = []
        self.tried: list[Operation] = []
        self.dangling = False
        self.closed: list[ClosedSubflow] = []
        self.ended: list[EndedConnection] = []
        self.sick: dict[FourTuple, Ailment] = {}
        self.pacing = ModelFeature()
        self.discards = ModelFeature()
        self.steering = ModelFeature()
        self.classifier = "rules"
        self.numbered = False  # whether an error tells which operation was refused

    def read(self) -> KernelState:
        self._fail_read()
        self.reads += 1
        return replace(self.state, assignments=dict(sorted(self.state.assignments.items())))

    @property
    def features(self) -> dict[str, Feature]:
        """The features beside the classes, without uplinks."""
        return {
            FeatureName.STEERING: self.steering,
            FeatureName.PACING: self.pacing,
            FeatureName.DISCARDS: self.discards,
        }

    def ailments(self) -> dict[FourTuple, Ailment]:
        return dict(self.sick)

    def closed_subflows(self) -> list[ClosedSubflow]:
        closed, self.closed = self.closed, []
        return closed

    def ended_connections(self) -> list[EndedConnection]:
        ended, self.ended = self.ended, []
        return ended

    def quick_check(self) -> QuickCheck:
        self._fail_read()
        self.quick_checks += 1
        found = self.state.assignments.items()
        counts = {version: None if of.altered else len(of.assignments) for version, of in found}
        return QuickCheck(counts, self.state.pacing)

    def fail_open(self) -> None:
        if self.state.qdisc.htb is not None:
            self.apply(RestoreQdisc())

    def apply(self, operation: OtherOperation) -> None:
        self._apply(operation)

    def change_classes(self, operations: Sequence[ClassOperation]) -> list[KernelError | None]:
        return [self._refusal(operation) for operation in operations]

    @property
    def throttled(self) -> dict[FourTuple, Rate]:
        return throttled(self.state)

    def replace_qdisc(self, **changes: object) -> None:
        """Another program changes what tc shows."""
        self.state = replace(self.state, qdisc=replace(self.state.qdisc, **changes))  # type: ignore[arg-type]

    def _apply(self, operation: Operation) -> None:
        self.tried.append(operation)
        if operation in self.refuse or type(operation) in self.refuse:
            raise KernelError(str(operation) if self.numbered else type(operation).__name__, errno.ENOMEM)
        self.state = apply(self.state, operation)
        self.applied.append(operation)
        self.dangling |= dangling(self.state)

    def _refusal(self, operation: ClassOperation) -> KernelError | None:
        try:
            self._apply(operation)
        except KernelError as error:
            return error
        return None

    def _fail_read(self) -> None:
        if self.reads_refused:
            self.reads_refused -= 1
            raise KernelError("unreadable", errno.ENOBUFS)
