"""The mark of packets that the daemon's steering programs send to the proxy itself (bpf/steering.h, ACK_MARK).

Packet sockets see such a packet before it becomes an ACK: as an incoming copy of one that the proxy has sent.
"""

from __future__ import annotations

from typing import Final

MARK: Final = 0x4D50_0000
MARK_MASK: Final = 0xFFFE_0000
