"""With what header the frames of an interface begin, by its hardware type."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class Link(Enum):
    """The header with which the frames of an interface begin."""

    ETHERNET = auto()
    RAW_IP = auto()


# include/uapi/linux/if_arp.h: ARPHRD_ETHER, ARPHRD_LOOPBACK; ARPHRD_NONE (tun, WireGuard), ARPHRD_PPP, ARPHRD_RAWIP.
# Packets redirected by BPF lose their Ethernet header on those without one (include/linux/if_arp.h,
# dev_is_mac_header_xmit).
_LINKS: Final = {
    **dict.fromkeys((1, 772), Link.ETHERNET),
    **dict.fromkeys((0xFFFE, 512, 519), Link.RAW_IP),
}


def link_of(hardware_type: int) -> Link | None:
    """The header of an interface with this hardware type (ifi_type, ARPHRD_*); None: not supported."""
    return _LINKS.get(hardware_type)
