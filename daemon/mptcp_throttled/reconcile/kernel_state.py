"""What is ours in the kernel, as values: what the kernel layer reads and reconciliation compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mptcp_throttle.model import FourTuple
    from mptcp_throttle.units import Rate


IP_VERSIONS: Final = (4, 6)


@dataclass(frozen=True, slots=True)
class HtbState:
    """Our HTB as it is in the kernel; a class that is not as we make them (no leaf, another ceil) has rate None."""

    default_minor: int
    filtered: bool
    classes: Mapping[int, Rate | None]


@dataclass(frozen=True, slots=True)
class ChainState:
    """Our chain, and its sets, as they are in the kernel.

    `altered`: they are not wholly as we make them, or the chain is not jumped to once.
    """

    marks: Mapping[FourTuple, int]
    altered: bool = False


@dataclass(frozen=True, slots=True)
class QdiscState:
    """What tc shows: our HTB if it is the proxy interface's root qdisc, or the `obstacle` that keeps it from being so.

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
    """The paces of sockets, in bytes/s; None if they cannot be set, for the `problem`."""

    paces: Mapping[FourTuple, int] | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class QuickCheck:
    """How much of ours is in the kernel, tc excluded: `marks` by IP version of the chain, None for an altered chain."""

    marks: Mapping[int, int | None]
    pacing: PacingState


@dataclass(frozen=True, slots=True)
class KernelState:
    """What is ours in the kernel; `chains` by IP version."""

    qdisc: QdiscState = field(default_factory=QdiscState)
    chains: Mapping[int, ChainState] = field(default_factory=dict)
    pacing: PacingState = field(default_factory=PacingState)
