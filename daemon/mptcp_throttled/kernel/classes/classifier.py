"""The contract of the classifiers: what leads the packets of subflows to their HTB classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from mptcp_throttle.model import FourTuple
from mptcp_throttled.vocabulary.kernel_state import AssignmentState


class Classifier(Protocol):
    """Assigns subflows to HTB classes, by IP version. An assignment is a subflow and the minor of its class.

    For one thread only; all methods raise KernelError. Assignments are altered if another classifier has left its
    objects; `make` and `remove` remove those too.
    """

    @property
    def kind(self) -> str:
        """`socket`, `nft`, `rules` or `ovs`."""

    @property
    def needs_filter(self) -> bool:
        """Whether HTB needs the filter that leads from fwmarks to classes. It matches the proxy's ports only, so
        subflows with other ports have no class."""

    def close(self) -> None:
        """Close the netlink sockets."""

    def require(self) -> None:
        """Raise KernelError if this host lacks what the classifier needs."""

    def read(self) -> dict[int, AssignmentState]:
        """Our assignments by IP version, without those IP versions that have nothing of ours."""

    def count(self) -> dict[int, int | None]:
        """The number of assignments by IP version; None if they are altered."""

    def make(self, ip_version: int, assignments: Mapping[FourTuple, int]) -> None:
        """Make exactly these assignments; what exists is replaced."""

    def change(self, ip_version: int, add: Mapping[FourTuple, int], remove: Mapping[FourTuple, int]) -> None:
        """Remove and add assignments, which have been made and are not altered; one in both is changed."""

    def remove(self, ip_version: int) -> None:
        """Remove everything of ours."""
