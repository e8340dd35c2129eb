"""The kernel operations as values: `diff` returns them, `plan` prints them, the kernel layer applies them.

They never change: whoever makes one must not change its mappings afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mptcp_throttle.model import FourTuple
from mptcp_throttle.units import Rate


@dataclass(frozen=True, slots=True)
class InstallHtb:
    """On each interface without our HTB, save the root qdisc and replace it by HTB.

    HTB gets its filter from fwmark to class if the classifier needs it.
    """

    default_minor: int


@dataclass(frozen=True, slots=True)
class AddClass:
    """Add a class with its leaf qdisc."""

    minor: int
    rate: Rate


@dataclass(frozen=True, slots=True)
class ChangeClass:
    """Change the rate of a class; queued packets stay. `replace_leaf`: replace its leaf qdisc too, which drops them."""

    minor: int
    rate: Rate
    replace_leaf: bool = False


@dataclass(frozen=True, slots=True)
class DeleteClass:
    """Delete a class that no assignment names."""

    minor: int


@dataclass(frozen=True, slots=True)
class MakeAssignments:
    """Make exactly these assignments of one IP version, with our chain or table if needed, whatever is there."""

    ip_version: int
    assignments: Mapping[FourTuple, int]


@dataclass(frozen=True, slots=True)
class ChangeAssignments:
    """Remove and add assignments of one IP version, of which assignments have been made before."""

    ip_version: int
    add: Mapping[FourTuple, int]
    remove: Mapping[FourTuple, int]


@dataclass(frozen=True, slots=True)
class ChangePaces:
    """Remove and set paces, in bytes/s, of the proxy's sockets."""

    add: Mapping[FourTuple, int]
    remove: Mapping[FourTuple, int]


@dataclass(frozen=True, slots=True)
class RemoveAssignments:
    """Remove all assignments of one IP version, with our chain, the jumps to it and our table."""

    ip_version: int


@dataclass(frozen=True, slots=True)
class RestoreQdisc:
    """Put the saved qdiscs of an interface back; without a name, those of the proxy's interfaces."""

    interface: str | None = None


ClassOperation = AddClass | ChangeClass | DeleteClass
"""The operations that are applied many at a time."""

OtherOperation = InstallHtb | MakeAssignments | ChangeAssignments | ChangePaces | RemoveAssignments | RestoreQdisc
Operation = ClassOperation | OtherOperation
