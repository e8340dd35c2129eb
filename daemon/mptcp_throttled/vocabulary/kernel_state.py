"""Our objects in the kernel, as values: the kernel layer reads them, and they are compared with the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from mptcp_throttle.model import FourTuple
    from mptcp_throttle.units import Rate
    from mptcp_throttled.vocabulary.kernel_plan import KernelPlan

IP_VERSIONS: Final = (4, 6)


@dataclass(frozen=True, slots=True)
class HtbState:
    """Our HTB, which is the same on each interface of the proxy.

    `classifies`: the filter from fwmark to class is there if, and only if, the classifier needs it. A class that is not
    as we make them (no leaf qdisc, another ceil), or not on each interface, has rate None. `complete`: no interface
    lacks HTB, except those that do not exist or have an obstacle.
    """

    default_minor: int
    classifies: bool
    classes: Mapping[int, Rate | None]
    complete: bool = True


@dataclass(frozen=True, slots=True)
class AssignmentState:
    """The class assignments of one IP version, whichever classifier has made them.

    `altered`: chain or table are not as we made them, another number of rules than one jumps to the chain, or another
    classifier has left something.
    """

    assignments: Mapping[FourTuple, int]
    altered: bool = False


@dataclass(frozen=True, slots=True)
class QdiscState:
    """Our HTB, if it is the root qdisc of an interface of the proxy, else the `obstacle` to installing it, if any.

    `restore_pending`: the saved qdisc is not back yet, because another program has deleted our HTB or because restoring
    was interrupted. `pending_elsewhere` names other interfaces for which that is so, or which still have our HTB, as
    the interface was renamed or the configuration names another one now: they are restored whatever the plan says.

    `left_out` says why some interfaces of the proxy have no HTB, while another has or can have it, or while caps are
    held without. `without_qdisc`: no interface can have HTB, but sockets can be paced, and the classes of `htb` are
    only noted.
    """

    htb: HtbState | None = None
    obstacle: str | None = None
    restore_pending: bool = False
    pending_elsewhere: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    without_qdisc: bool = False


@dataclass(frozen=True, slots=True)
class PacingState:
    """The paces of sockets in bytes/s; None: sockets cannot be paced, and `problem` says why."""

    paces: Mapping[FourTuple, int] | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class QuickCheck:
    """Our objects in the kernel but qdiscs and classes: the number of `assignments` by IP version (None: altered), and
    the paces."""

    assignments: Mapping[int, int | None]
    pacing: PacingState


@dataclass(frozen=True, slots=True)
class KernelState:
    """All our objects in the kernel; `assignments` by IP version."""

    qdisc: QdiscState = field(default_factory=QdiscState)
    assignments: Mapping[int, AssignmentState] = field(default_factory=dict)
    pacing: PacingState = field(default_factory=PacingState)


def of_version(assignments: Mapping[FourTuple, int], version: int) -> dict[FourTuple, int]:
    """The assignments of one IP version."""
    return {ends: minor for ends, minor in assignments.items() if ends.client.address.version == version}


def state_of(plan: KernelPlan, pacing: PacingState, made: Collection[int]) -> KernelState:
    """The kernel state in which `plan` is applied.

    `pacing` says whether sockets can be paced; `made` are the IP versions whose assignments have been made.
    """
    if pacing.paces is not None:
        pacing = PacingState(plan.paces)
    present = {version: AssignmentState(of_version(plan.assignments, version)) for version in made}
    return KernelState(QdiscState(HtbState(plan.default_minor, True, plan.classes)), present, pacing)
