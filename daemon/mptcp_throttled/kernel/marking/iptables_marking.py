"""What the iptables back ends share: our chain of each IP version, and our sets."""

from __future__ import annotations

from mptcp_throttled.kernel.marking.ipset import MAX_MARKS, OwnSets
from mptcp_throttled.kernel.marking.iptables import OwnChain
from mptcp_throttled.reconcile.kernel_state import IP_VERSIONS


class IptablesMarking:
    """Base of the iptables back ends. For one thread only; all methods raise KernelError."""

    needs_filter = True

    def __init__(self, mask: int, max_marks: int = MAX_MARKS) -> None:
        self._mask = mask
        self._chains = {version: OwnChain(version) for version in IP_VERSIONS}
        self._sets = OwnSets(max_marks)

    def close(self) -> None:
        """Close the netlink sockets."""
        self._sets.close()

    def require(self) -> None:
        """Raise KernelError if the kernel has no mangle table for IPv4."""
        self._chains[4].require_table()

    def remove(self, ip_version: int) -> None:
        """Remove our chain, the jumps to it, and our sets, whichever back end has made them."""
        self._chains[ip_version].remove()
        self._sets.destroy_all(ip_version)
