"""The header with which the frames of an interface begin, by its hardware type."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class LinkHeader(Enum):
    """The header with which the frames of an interface begin."""

    ETHERNET = auto()
    RAW_IP = auto()


# include/uapi/linux/if_arp.h: ARPHRD_ETHER, ARPHRD_LOOPBACK; ARPHRD_NONE (tun, WireGuard), ARPHRD_PPP, ARPHRD_RAWIP.
# What BPF redirects loses its Ethernet header on interfaces that have none (include/linux/if_arp.h,
# dev_is_mac_header_xmit; kernels released before September 2023 do not know ARPHRD_PPP there). PPP has not been tested.
_LINKS: Final = {
    **dict.fromkeys((1, 772), LinkHeader.ETHERNET),
    **dict.fromkeys((0xFFFE, 512, 519), LinkHeader.RAW_IP),
}


def link_header_of(hardware_type: int) -> LinkHeader | None:
    """The header of an interface with this hardware type (ifi_type, ARPHRD_*); None: not supported."""
    return _LINKS.get(hardware_type)
