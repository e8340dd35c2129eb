"""The contract of an assignment back end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from mptcp_throttle.model import FourTuple
from mptcp_throttled.vocabulary.kernel_state import AssignmentState


class Classifier(Protocol):
    """Leads subflows to HTB classes, by IP version: by packet assignments, or by the priority of packets or sockets.

    For one thread only; all methods raise KernelError. Marks are altered if another back end has left its objects;
    `make` and `remove` remove those too.
    """

    @property
    def kind(self) -> str:
        """`socket`, `nft`, `ipset` or `rules`."""

    @property
    def needs_filter(self) -> bool:
        """Whether HTB needs the filter that leads from assignments to classes."""

    def close(self) -> None:
        """Close the netlink socket."""

    def require(self) -> None:
        """Raise KernelError if the kernel lacks what this back end needs."""

    def read(self) -> dict[int, AssignmentState]:
        """Our assignments by IP version, without those IP versions that have nothing of ours."""

    def count(self) -> dict[int, int | None]:
        """The number of assignments by IP version; None if they are altered."""

    def make(self, ip_version: int, assignments: Mapping[FourTuple, int]) -> None:
        """Make exactly these assignments; what exists is replaced."""

    def change(self, ip_version: int, add: Mapping[FourTuple, int], remove: Mapping[FourTuple, int]) -> None:
        """Remove and add assignments, which have been made and are not altered."""

    def remove(self, ip_version: int) -> None:
        """Remove everything of ours."""
