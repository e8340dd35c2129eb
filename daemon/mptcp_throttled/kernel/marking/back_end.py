"""The contract of a marking back end, and the choice between the back ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import FourTuple, MarkMethod
from mptcp_throttled.kernel.htb import Marking
from mptcp_throttled.kernel.marking.rules import RuleMarking
from mptcp_throttled.kernel.marking.sets import IpsetMarking
from mptcp_throttled.reconcile.kernel_state import ChainState

_log = logging.getLogger("mptcp-throttled")


class MarkingBackEnd(Protocol):
    """Sets the packet mark of subflows, by IP version. For one thread only; all methods raise KernelError.

    A chain is altered if another back end has left its objects; `make` and `remove` remove those too.
    """

    @property
    def kind(self) -> str:
        """`ipset` or `rules`."""

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


def choose_marking(wanted: MarkMethod, marking: Marking) -> MarkingBackEnd:
    """The back end that is `wanted`; for `auto`: ipset if the kernel has it, else rules."""
    if wanted is MarkMethod.RULES:
        return RuleMarking(marking.mask)
    sets = IpsetMarking(marking)
    if wanted is MarkMethod.AUTO:
        try:
            sets.require()
        except KernelError as error:
            _log.warning("marks: one iptables rule per subflow, because ipset cannot be used: %s", error)
            sets.close()
            return RuleMarking(marking.mask)
    return sets
