"""What the table has of a connection and of each of its live subflows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from mptcp_sniffer.handshake import Ends, Joined, Opened
from mptcp_throttle.model import Connection, FourTuple, Subflow, Token

if TYPE_CHECKING:
    from collections.abc import Collection

    from mptcp_sniffer.handshake import Keys, Start


@dataclass(slots=True)
class LiveSubflow:
    """A subflow in the table; times are those of `Tracker.observe`.

    `start`, of the client's SYN, tells it from a later subflow on the same ports; None: it is known from the kernel
    list only. `established_at` is when it came into the table, `idle_since` the time of its last captured segment.
    `closed_by_kernel` is when the kernel said that it has closed the subflow, which may still send what was queued.
    `backup_claimed`: the client was seen to ask for a backup. `backup_withdrawn`: after that, it was seen to ask for a
    regular subflow, which the kernel has not confirmed. `explained`: it was in the kernel list, or a segment says why
    it is not.
    """

    ends: FourTuple
    opened_at: float
    established_at: float
    idle_since: float
    start: Start | None
    address_id: int = 0
    proxy_address_id: int = 0
    backup_at_join: bool = False
    backup_claimed: bool = False
    backup_withdrawn: bool = False
    backup_by_client: bool = False
    backup_by_proxy: bool = False
    stalled: bool = False
    closed_by_kernel: float | None = None
    explained: bool = False

    @property
    def backup(self) -> bool:
        """Whether it is a backup for the kernel."""
        # Linux treats a subflow as backup if either side asks for it (net/mptcp/protocol.c, mptcp_subflow_get_send).
        return self.backup_by_client or self.backup_by_proxy

    @classmethod
    def of(cls, handshake: Opened | Joined, at: float) -> Self:
        """The subflow of a handshake, established `at` this time."""
        live = cls(unpack(handshake.ends), handshake.at, at, at, handshake.start)
        if isinstance(handshake, Joined):
            live.address_id, live.proxy_address_id = handshake.address_id, handshake.proxy_address_id
            live.backup_at_join = live.backup_by_client = live.backup_claimed = handshake.backup
            live.backup_by_proxy = handshake.proxy_backup
        return live

    def subflow(self) -> Subflow:
        """The subflow as it is now."""
        stalled = self.stalled or self.closed_by_kernel is not None
        return Subflow(self.ends, self.address_id, self.backup, self.backup_at_join, self.opened_at, stalled)


@dataclass(slots=True)
class Entry:
    """A connection in the table, or an orphan since `orphaned_at`: it has no subflow now, but can be joined again.

    `port` is the proxy's port that has accepted the connection. If the kernel list has it without its first subflow,
    `port` is that of any subflow. `keys` are None while only the connection is known.
    """

    token: Token
    version: int
    port: int
    keys: Keys | None
    subflows: dict[Ends, LiveSubflow] = field(default_factory=dict)
    orphaned_at: float = 0.0

    def with_address(self, address_ids: Collection[int], *, by_client: bool) -> list[Ends]:
        """The subflows from one of these addresses of the client, or to one of the proxy."""
        return [
            ends
            for ends, live in self.subflows.items()
            if (live.address_id if by_client else live.proxy_address_id) in address_ids
        ]

    def connection(self) -> Connection:
        """The connection as it is now."""
        subflows = tuple(live.subflow() for live in self.subflows.values())
        return Connection(self.token, self.version, self.port, subflows)


def unpack(ends: Ends) -> FourTuple:
    """The four-tuple of packed ends."""
    return FourTuple.of(*ends.client, *ends.proxy)
