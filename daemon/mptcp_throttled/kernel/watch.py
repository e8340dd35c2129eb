"""What the kernel tells about our interface: somebody has changed its qdiscs, classes, filters, addresses or itself.

Rules have no such notification (iptables-legacy has no netlink), nor have sets; their changes are found by the audit.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from struct import Struct
from typing import TYPE_CHECKING, Final

from pyroute2.netlink.rtnl import (
    RTM_DELLINK,
    RTM_NEWLINK,
    RTMGRP_IPV4_IFADDR,
    RTMGRP_IPV6_IFADDR,
    RTMGRP_LINK,
    RTMGRP_TC,
)

from mptcp_throttle.linux.cbpf import JEQ, LD, RET, Line, assemble, attach_filter
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.netlink import attributes, messages
from mptcp_throttle.linux.netlink_requests import bind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from mptcp_throttle.linux.cbpf import Instruction

_log = logging.getLogger("mptcp-throttled")

_GROUPS: Final = RTMGRP_LINK | RTMGRP_TC | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR
_REOPEN_SECONDS: Final = 1.0
_RECEIVE_BYTES: Final = 2**18
_PORT_OFFSET: Final = 12  # nlmsg_pid in struct nlmsghdr
# struct ifinfomsg, tcmsg and ifaddrmsg all have the interface there.
_INDEX: Final = Struct("=xxxxi")
_IFINFOMSG_BYTES: Final = 16
_IFLA_IFNAME: Final = 3  # include/uapi/linux/if_link.h


class Notifications(threading.Thread):
    """Calls `changed`, from this thread, after every change that another netlink port than `own_ports` has made."""

    def __init__(self, interface: str, own_ports: Collection[int], changed: Callable[[], None]) -> None:
        super().__init__(name="notifications", daemon=True)
        self._interface = interface
        self._not_ours = _others_than(own_ports)
        self._changed = changed
        self._index: int | None = None

    def run(self) -> None:
        """Listen for as long as the process lives."""
        while True:
            try:
                self._listen()
            except (OSError, KernelError) as error:
                # ENOBUFS above all: more happened than the socket holds. Then something has changed for certain.
                _log.warning("notifications of the kernel lost: %s", error)
                self._changed()
                time.sleep(_REOPEN_SECONDS)

    def _listen(self) -> None:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as notified:
            # What we change ourselves must not wake anybody: at every JOIN that is half a dozen messages.
            attach_filter(notified, self._not_ours)
            bind(notified, _GROUPS)
            # Nobody has told what changed before.
            self._changed()
            with contextlib.suppress(OSError):
                self._index = socket.if_nametoindex(self._interface)
            while True:
                if self._concern_us(notified.recv(_RECEIVE_BYTES)):
                    self._changed()

    def _concern_us(self, data: bytes) -> bool:
        concern_us = False
        for kind, _, _, payload in messages(data):
            concern_us |= self._concerns_us(kind, payload)
        return concern_us

    def _concerns_us(self, kind: int, payload: bytes) -> bool:
        (index,) = _INDEX.unpack_from(payload)
        ours: bool = index == self._index
        if kind in {RTM_NEWLINK, RTM_DELLINK}:
            named = attributes(payload[_IFINFOMSG_BYTES:]).get(_IFLA_IFNAME) == self._interface.encode() + b"\0"
            if named or ours:
                self._index = index if named else None
            ours |= named
        return ours


def _others_than(ports: Collection[int]) -> tuple[Instruction, ...]:
    """Passes the messages that other netlink ports than these have caused."""
    # A netlink header is in the host's byte order, and such programs load in that of the network.
    loaded = (socket.ntohl(port) for port in ports)
    return assemble(
        (
            Line(LD, _PORT_OFFSET),
            *(Line(JEQ, port, then="ours") for port in loaded),
            Line(RET, 0xFFFF_FFFF),
            "ours",
            Line(RET, 0),
        )
    )
