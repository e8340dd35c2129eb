"""What the back ends share that look at packets: our objects in the kernel, whichever of these back ends makes them."""

from __future__ import annotations

from mptcp_throttled.kernel.classes.ipset import MAX_MARKS, OwnSets
from mptcp_throttled.kernel.classes.iptables import OwnChain
from mptcp_throttled.kernel.classes.nft_tables import OwnTables
from mptcp_throttled.vocabulary.kernel_state import IP_VERSIONS


class PacketClassifier:
    """Base of these back ends. For one thread only; all methods raise KernelError."""

    def __init__(self, max_marks: int = MAX_MARKS) -> None:
        self._chains = {version: OwnChain(version) for version in IP_VERSIONS}
        self._sets = OwnSets(max_marks)
        self._tables = OwnTables()

    def close(self) -> None:
        """Close the netlink sockets."""
        self._sets.close()
        self._tables.close()

    def remove(self, ip_version: int) -> None:
        """Remove our chain, the jumps to it, our sets and our table, whichever back end has made them."""
        self._chains[ip_version].remove()
        self._sets.destroy_all(ip_version)
        self._tables.remove(ip_version)
