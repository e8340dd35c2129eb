"""The contract of a marking back end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from mptcp_throttle.model import FourTuple
from mptcp_throttled.reconcile.kernel_state import ChainState


class MarkingBackEnd(Protocol):
    """Leads subflows to HTB classes, by IP version: by packet marks in a chain, or by the priority of sockets.

    For one thread only; all methods raise KernelError. A chain is altered if another back end has left its objects;
    `make` and `remove` remove those too.
    """

    @property
    def kind(self) -> str:
        """`socket`, `ipset` or `rules`."""

    @property
    def needs_filter(self) -> bool:
        """Whether HTB needs the filter that leads from marks to classes."""

    def close(self) -> None:
        """Close the netlink socket."""

    def require(self) -> None:
        """Raise KernelError if the kernel lacks what this back end needs."""

    def read(self) -> dict[int, ChainState]:
        """Our chains by IP version, without those IP versions that have nothing of ours."""

    def count(self) -> dict[int, int | None]:
        """The number of marks by IP version; None for an altered chain."""

    def make(self, ip_version: int, marks: Mapping[FourTuple, int]) -> None:
        """Make our chain with exactly these marks; an existing chain is replaced."""

    def change(self, ip_version: int, add: Mapping[FourTuple, int], remove: Mapping[FourTuple, int]) -> None:
        """Remove and add marks of an existing chain, which is not altered."""

    def remove(self, ip_version: int) -> None:
        """Remove everything of ours."""
