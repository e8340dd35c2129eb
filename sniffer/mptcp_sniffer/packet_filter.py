"""The kernel's part of the capture: only segments that open or close a subflow of a proxy port wake Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def handshake_filter(ports: Sequence[int]) -> str:
    """A pcap-filter(7) expression for SYN, FIN and RST from or to `ports`, IPv4 and IPv6.

    `tcp[...]` of libpcap never matches IPv6, so the flags of IPv6 are read at their place behind a header without
    extensions (next header at byte 6, flags at byte 40 + 13).
    """
    of_proxy = " or ".join(f"port {port}" for port in ports)
    opens_or_closes = "tcp[13] & 7 != 0 or (ip6[6] = 6 and ip6[53] & 7 != 0)"
    return f"tcp and ({of_proxy}) and ({opens_or_closes})"
