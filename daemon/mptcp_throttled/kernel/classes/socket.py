"""The classifier `socket`: the class of a subflow is the SO_PRIORITY of its socket, which the kernel program sets.

HTB looks at it before it asks a filter, so there is neither chain nor filter, and no fwmark of another program has an
effect.
"""

from __future__ import annotations

from collections.abc import Mapping

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import FourTuple
from mptcp_throttled.kernel.classes.classifier import Classifier
from mptcp_throttled.kernel.sockets.pacing import PacedSockets
from mptcp_throttled.vocabulary.kernel_state import AssignmentState


class SocketClassifier:
    """The classifier `socket`. `by_packet` removes what another classifier has left."""

    kind = "socket"
    needs_filter = False

    def __init__(self, sockets: PacedSockets, by_packet: Classifier) -> None:
        self._sockets = sockets
        self._by_packet = by_packet
        self._made: set[int] = set()

    @property
    def usable(self) -> bool:
        """Whether the kernel program is attached."""
        return self._sockets.is_attached

    def close(self) -> None:
        self._by_packet.close()

    def require(self) -> None:
        self._sockets.require()

    def read(self) -> dict[int, AssignmentState]:
        left = self._left()
        return {v: AssignmentState(dict(self._sockets.classes(v)), v in left) for v in self._made | left}

    def adopt(self, assignments: Mapping[FourTuple, int]) -> None:
        """Begin with the classes in which an earlier instance has put subflows: none leaves its class."""
        self._sockets.adopt_classes(assignments)
        self._made.update(ends.client.address.version for ends in assignments)

    def count(self) -> dict[int, int | None]:
        return {version: len(self._sockets.classes(version)) for version in self._made}

    def make(self, ip_version: int, assignments: Mapping[FourTuple, int]) -> None:
        if ip_version in self._left():
            self._by_packet.remove(ip_version)
        self._sockets.change_classes(
            ip_version, assignments, self._sockets.classes(ip_version).keys() - assignments.keys()
        )
        self._made.add(ip_version)

    def change(self, ip_version: int, add: Mapping[FourTuple, int], remove: Mapping[FourTuple, int]) -> None:
        self._sockets.change_classes(ip_version, add, remove.keys() - add.keys())

    def remove(self, ip_version: int) -> None:
        if ip_version in self._left():
            self._by_packet.remove(ip_version)
        self._sockets.change_classes(ip_version, {}, tuple(self._sockets.classes(ip_version)))
        self._made.discard(ip_version)

    def _left(self) -> set[int]:
        try:
            return set(self._by_packet.read())
        except KernelError:
            return set()  # a kernel without nftables or iptables has nothing of ours there
