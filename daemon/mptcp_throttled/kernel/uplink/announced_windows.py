"""The windows that the proxy announces on subflows: their scale (RFC 7323, section 2), and the shortest round trips."""

from __future__ import annotations

import sys
from collections.abc import Collection
from struct import Struct
from typing import Final, NamedTuple

from mptcp_throttle.linux.inet_diag import INET_DIAG_INFO, InetDiag
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import FourTuple

# struct tcp_info (include/uapi/linux/tcp.h): the bit fields tcpi_snd_wscale and tcpi_rcv_wscale; tcpi_min_rtt
_TCP_INFO: Final = Struct("=6xB141xI")
_NO_ROUND_TRIP: Final = 0xFFFF_FFFF  # tcpi_min_rtt before the first sample


class AnnouncedWindow(NamedTuple):
    """The scale of a subflow's window, and its shortest round-trip time in microseconds (0 before the first sample)."""

    scale: int
    round_trip_us: int


def read_announced_windows(
    subflows: Collection[FourTuple],
) -> tuple[dict[FourTuple, AnnouncedWindow], KernelError | None]:
    """The windows of the subflows that have a connected socket on this host; and the error that ended the reading."""
    windows: dict[FourTuple, AnnouncedWindow] = {}
    if not subflows:
        return windows, None
    try:
        with InetDiag() as diag:
            for ends in subflows:
                window = _read(diag, ends)
                if window is not None:
                    windows[ends] = window
    except KernelError as error:
        return windows, error
    return windows, None


def _read(diag: InetDiag, ends: FourTuple) -> AnnouncedWindow | None:
    client, proxy = ends.client, ends.proxy
    place = proxy.address.packed, proxy.port, client.address.packed, client.port
    socket = diag.find(*place, wanted={INET_DIAG_INFO})
    # A socket that is not established yet, or in TIME_WAIT, has no struct tcp_info.
    info = b"" if socket is None else socket.attributes.get(INET_DIAG_INFO, b"")
    if len(info) < _TCP_INFO.size:
        return None
    scales, round_trip = _TCP_INFO.unpack_from(info)
    scale = scales >> 4 if sys.byteorder == "little" else scales & 0xF
    return AnnouncedWindow(scale, 0 if round_trip == _NO_ROUND_TRIP else round_trip)
