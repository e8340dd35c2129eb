"""What of ours is in the kernel, as values: what the kernel layer reads, and what is compared with the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from mptcp_throttle.model import FourTuple
    from mptcp_throttle.units import Rate
    from mptcp_throttled.desired.kernel_plan import KernelPlan

IP_VERSIONS: Final = (4, 6)


@dataclass(frozen=True, slots=True)
class HtbState:
    """Our HTB; `filtered`: its filter from mark to class is there.

    A class that is not as we make them (no leaf qdisc, another ceil) has rate None.
    """

    default_minor: int
    filtered: bool
    classes: Mapping[int, Rate | None]


@dataclass(frozen=True, slots=True)
class ChainState:
    """The marks of one IP version: our iptables chain, with its sets if there are any.

    `altered`: chain or sets are not as we made them, or not exactly one rule jumps to the chain.
    """

    marks: Mapping[FourTuple, int]
    altered: bool = False


@dataclass(frozen=True, slots=True)
class QdiscState:
    """Our HTB if it is the root qdisc of the proxy's interface, else the `obstacle` to installing it, if there is one.

    `restore_pending`: the saved qdisc is not back yet, because somebody has deleted our HTB or because restoring was
    interrupted. `pending_elsewhere` names the other interfaces for which that is so, or which still have our HTB (the
    interface was renamed, or the configuration names another one now): they are restored whatever the plan says.
    """

    htb: HtbState | None = None
    obstacle: str | None = None
    restore_pending: bool = False
    pending_elsewhere: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PacingState:
    """The paces of sockets in bytes/s; None if sockets cannot be paced, and `problem` says why."""

    paces: Mapping[FourTuple, int] | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class QuickCheck:
    """How much of ours is in the kernel, tc excluded: `marks` by IP version of the chain, None for an altered chain."""

    marks: Mapping[int, int | None]
    pacing: PacingState


@dataclass(frozen=True, slots=True)
class KernelState:
    """All of ours in the kernel; `chains` by IP version."""

    qdisc: QdiscState = field(default_factory=QdiscState)
    chains: Mapping[int, ChainState] = field(default_factory=dict)
    pacing: PacingState = field(default_factory=PacingState)


def of_version(marks: Mapping[FourTuple, int], version: int) -> dict[FourTuple, int]:
    """The marks of one IP version."""
    return {ends: minor for ends, minor in marks.items() if ends.client.address.version == version}


def state_of(plan: KernelPlan, pacing: PacingState, chains: Collection[int]) -> KernelState:
    """The kernel state in which `plan` is applied. `pacing` says whether sockets can be paced; `chains` are present."""
    if pacing.paces is not None:
        pacing = PacingState(plan.paces)
    present = {version: ChainState(of_version(plan.marks, version)) for version in chains}
    return KernelState(QdiscState(HtbState(plan.default_minor, True, plan.classes)), present, pacing)
