"""How the windows that the proxy announces on a subflow are scaled (RFC 7323, section 2)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from mptcp_throttle.linux.inet_diag import INET_DIAG_INFO, InetDiag
from mptcp_throttle.model import FourTuple

# struct tcp_info (include/uapi/linux/tcp.h): tcpi_snd_wscale in four bits of this byte, then tcpi_rcv_wscale.
_SCALES: Final = 6


def read_window_scales(subflows: Collection[FourTuple]) -> dict[FourTuple, int]:
    """The scales of these subflows, as far as this host has their sockets. Raises KernelError."""
    found: dict[FourTuple, int] = {}
    if not subflows:
        return found
    with InetDiag() as diag:
        for ends in subflows:
            client, proxy = ends.client, ends.proxy
            place = proxy.address.packed, proxy.port, client.address.packed, client.port
            socket = diag.find(*place, wanted={INET_DIAG_INFO})
            if socket is not None:
                found[ends] = socket.attributes[INET_DIAG_INFO][_SCALES] >> 4
    return found
