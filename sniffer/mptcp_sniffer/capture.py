"""Scapy's packet socket with what a service needs: a large buffer, no promiscuous mode, and the drop counters."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple, Self

from scapy.arch.linux import L2ListenSocket
from scapy.error import Scapy_Exception
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether

from mptcp_sniffer.segment import Segment, parse_ethernet, parse_ip
from mptcp_throttle.errors import UserError

# include/uapi/linux/if_packet.h and asm-generic/socket.h; the socket module names neither.
_SOL_PACKET: Final = 263
_PACKET_STATISTICS: Final = 6
_SO_RCVBUFFORCE: Final = 33
_TPACKET_STATS: Final = Struct("II")
_MAX_FRAME_BYTES: Final = 65535

_log = logging.getLogger("mptcp-sniffer")

_PARSERS: Final[dict[object, Callable[[bytes], Segment | None]]] = {Ether: parse_ethernet, IP: parse_ip}


class CapturedFrame(NamedTuple):
    """A frame and the kernel's time stamp in seconds since the epoch."""

    data: bytes
    at: float


class CaptureLost(Exception):
    """The interface went down or away; what happened meanwhile is unknown."""


class Capture:
    """Captures on `interface` what passes `packet_filter` (pcap-filter(7)).

    `parse` turns a captured frame into a segment, according to the interface's link type. Raises UserError if the
    capture cannot be opened; needs CAP_NET_RAW.
    """

    def __init__(self, interface: str, packet_filter: str, buffer_bytes: int, poll_seconds: float) -> None:
        try:
            self._socket = L2ListenSocket(iface=interface, filter=packet_filter, promisc=False)
        except PermissionError as error:
            raise UserError(
                "missing capability: CAP_NET_RAW; run as root or grant it in the unit", os.EX_NOPERM
            ) from error
        except (OSError, Scapy_Exception, ValueError) as error:
            raise UserError(f"{interface}: cannot be captured: {error}", os.EX_UNAVAILABLE) from error
        parser = _PARSERS.get(self._socket.LL)
        if parser is None:
            self._socket.close()
            raise UserError(f"{interface}: link type {self._socket.LL.__name__} is not supported", os.EX_UNAVAILABLE)
        self.parse = parser
        self._dropped = 0
        self._set_buffer(buffer_bytes)
        self._socket.ins.settimeout(poll_seconds)

    def _set_buffer(self, buffer_bytes: int) -> None:
        try:
            self._socket.ins.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
        except PermissionError:
            self._socket.ins.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        # The kernel doubles what is asked for, to account for its own overhead (socket(7)).
        granted = self._socket.ins.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        if granted < buffer_bytes:
            _log.warning(
                "capture buffer is %d bytes instead of %d: raise net.core.rmem_max, or grant CAP_NET_ADMIN",
                granted,
                buffer_bytes,
            )

    def next_frame(self) -> CapturedFrame | None:
        """The next frame; None if none came in `poll_seconds`. Raises CaptureLost."""
        try:
            _, data, at = self._socket.recv_raw(_MAX_FRAME_BYTES)
        except TimeoutError:
            return None
        except OSError as error:
            raise CaptureLost(error.strerror) from error
        return CapturedFrame(data, at)

    def dropped(self) -> int:
        """Frames the kernel dropped since the capture began because the buffer was full."""
        with suppress(OSError):  # the capture may have been closed meanwhile
            statistics = self._socket.ins.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _TPACKET_STATS.size)
            # Reading resets the kernel's counters.
            self._dropped += _TPACKET_STATS.unpack(statistics)[1]
        return self._dropped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
