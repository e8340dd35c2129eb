"""What the iptables back ends share, besides what `packet_classifier` has."""

from __future__ import annotations

from mptcp_throttled.kernel.classes.ipset import MAX_MARKS
from mptcp_throttled.kernel.classes.packet_classifier import PacketClassifier


class IptablesClassifier(PacketClassifier):
    """Base of the iptables back ends. For one thread only; all methods raise KernelError."""

    needs_filter = True

    def __init__(self, mask: int, max_marks: int = MAX_MARKS) -> None:
        super().__init__(max_marks)
        self._mask = mask

    def require(self) -> None:
        """Raise KernelError if the kernel has no mangle table for IPv4."""
        self._chains[4].require_table()
