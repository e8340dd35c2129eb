"""What marks the packets of held subflows: two back ends with one contract, and the choice between them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import MarkMethod
from mptcp_throttled.kernel.marking.rules import RuleMarking
from mptcp_throttled.kernel.marking.sets import IpsetMarking
from mptcp_throttled.reconcile.kernel_state import ChainState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mptcp_throttle.model import FourTuple
    from mptcp_throttled.kernel.htb import Marking

_log = logging.getLogger("mptcp-throttled")


class MarkingBackEnd(Protocol):
    """MarkingBackEnd of subflows in the kernel, by IP version. For one thread only; all methods raise KernelError.

    What the other back end has left makes a chain altered, and goes with it.
    """

    @property
    def kind(self) -> str:
        """`ipset` or `rules`."""

    def close(self) -> None:
        """Close the netlink socket."""

    def require(self) -> None:
        """Raise KernelError if the kernel has not what it takes."""

    def read(self) -> dict[int, ChainState]:
        """Our chains by IP version; none, where nothing of ours is."""

    def count(self) -> dict[int, int | None]:
        """How many marks each of our chains has, by IP version; None for one that is altered."""

    def make(self, ip_version: int, marks: Mapping[FourTuple, int]) -> None:
        """Make our chain with these marks alone, in place of what is there."""

    def change(self, ip_version: int, add: Mapping[FourTuple, int], remove: Mapping[FourTuple, int]) -> None:
        """Remove and add marks, in a chain that is there."""

    def remove(self, ip_version: int) -> None:
        """Remove all that is ours."""


def choose_marking(wanted: MarkMethod, marking: Marking) -> MarkingBackEnd:
    """The back end that is `wanted`; for `auto` sets, if the kernel has them."""
    if wanted is MarkMethod.RULES:
        return RuleMarking(marking.mask)
    sets = IpsetMarking(marking)
    if wanted is MarkMethod.AUTO:
        try:
            sets.require()
        except KernelError as error:
            _log.warning("marks: one rule per subflow, for want of sets: %s", error)
            sets.close()
            return RuleMarking(marking.mask)
    return sets
