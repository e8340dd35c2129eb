"""The kernel operations we know, as values: what `diff` returns, `plan` prints and the kernel layer carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mptcp_throttle.model import FourTuple
from mptcp_throttle.units import Rate


@dataclass(frozen=True, slots=True)
class InstallHtb:
    """Record the root qdisc and put HTB, with its mark-to-class filter, in its place."""

    default_minor: int


@dataclass(frozen=True, slots=True)
class AddClass:
    """Add a class with its leaf queue."""

    minor: int
    rate: Rate


@dataclass(frozen=True, slots=True)
class ChangeClass:
    """Change a class's rate in place; queued packets stay. `mend`: give it its leaf anew, with an empty queue."""

    minor: int
    rate: Rate
    mend: bool = False


@dataclass(frozen=True, slots=True)
class DeleteClass:
    """Delete a class that nothing is marked for."""

    minor: int


@dataclass(frozen=True, slots=True)
class MakeChain:
    """Make our chain of one IP version with these marks alone, in place of whatever is there."""

    ip_version: int
    marks: Mapping[FourTuple, int]


@dataclass(frozen=True, slots=True)
class ChangeMarks:
    """Remove and add marks of one IP version, in a chain that is there."""

    ip_version: int
    add: Mapping[FourTuple, int]
    remove: Mapping[FourTuple, int]


@dataclass(frozen=True, slots=True)
class ChangePaces:
    """Take away and give paces, in bytes/s, to the proxy's own sockets."""

    add: Mapping[FourTuple, int]
    remove: Mapping[FourTuple, int]


@dataclass(frozen=True, slots=True)
class RemoveChain:
    """Remove our chain, the jump to it, and its sets."""

    ip_version: int


@dataclass(frozen=True, slots=True)
class RestoreQdisc:
    """Put the recorded qdiscs of an interface back; without a name, of the proxy's."""

    interface: str | None = None


ClassOperation = AddClass | ChangeClass | DeleteClass
"""Those that are carried out many at a time."""

OtherOperation = InstallHtb | MakeChain | ChangeMarks | ChangePaces | RemoveChain | RestoreQdisc
Operation = ClassOperation | OtherOperation
