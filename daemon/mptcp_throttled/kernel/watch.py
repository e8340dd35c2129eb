"""Notifications of the kernel: another program has changed our interfaces, their addresses, qdiscs or filters.

iptables rules have no such notifications (iptables-legacy does not use netlink); the periodic quick check
and full reconcile find changes of these, and of nftables. Every notification is decoded by our own codec:
another program may cause thousands.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Collection
from struct import Struct
from typing import Final

from pyroute2.netlink import rtnl

from mptcp_throttle.linux.cbpf import JEQ, LD, RET, Instruction, Line, assemble
from mptcp_throttle.linux.kernel_error import KernelError, decoding_errors
from mptcp_throttle.linux.netlink_codec import Message, attributes, text
from mptcp_throttle.linux.netlink_socket import NetlinkSocket
from mptcp_throttled.kernel.interfaces import find_interfaces

_log = logging.getLogger("mptcp-throttled")

_GROUPS: Final = rtnl.RTMGRP_LINK | rtnl.RTMGRP_TC | rtnl.RTMGRP_IPV4_IFADDR | rtnl.RTMGRP_IPV6_IFADDR
_REOPEN_SECONDS: Final = 1.0
_PORT_OFFSET: Final = 12  # nlmsg_pid in struct nlmsghdr
_INDEX: Final = Struct("=xxxxi")  # the interface index in struct ifinfomsg, tcmsg and ifaddrmsg
_IFINFOMSG_BYTES: Final = 16
_IFLA_IFNAME: Final = 3  # include/uapi/linux/if_link.h


class Notifications(threading.Thread):
    """Calls `changed`, from this thread, after each change to one of `interfaces` that no port of `own_ports` made.

    `own_ports` are netlink ports (nlmsg_pid).
    """

    def __init__(self, interfaces: tuple[str, ...], own_ports: Collection[int], changed: Callable[[], None]) -> None:
        super().__init__(name="notifications", daemon=True)
        self._names = frozenset(interfaces)
        self._program = _drop_caused_by(own_ports)
        self._changed = changed
        self._indices: set[int] = set()

    def run(self) -> None:
        """Listen until the process ends."""
        while True:
            try:
                self._listen()
            except KernelError as error:
                # Above all ENOBUFS: the kernel dropped notifications because the receive buffer was full.
                _log.warning("notifications of the kernel lost: %s", error)
                self._changed()
                time.sleep(_REOPEN_SECONDS)

    def _listen(self) -> None:
        # Our own changes, half a dozen notifications at every JOIN, must not wake the process.
        with NetlinkSocket(socket.NETLINK_ROUTE, _GROUPS, self._program) as subscribed:
            # Whatever changed before the subscription was not reported.
            self._changed()
            self._indices = {interface.index for interface in find_interfaces(self._names)}
            while True:
                # All are looked at, as each may change the indices that the next one is compared with.
                if sum(self._concerns_us(message) for message in subscribed.notifications()):
                    self._changed()

    def _concerns_us(self, message: Message) -> bool:
        with decoding_errors("receive netlink notifications"):
            (index,) = _INDEX.unpack_from(message.payload)
        ours = index in self._indices
        if message.type in {rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK}:
            name = attributes(message.payload, _IFINFOMSG_BYTES, only={_IFLA_IFNAME}).get(_IFLA_IFNAME, b"")
            if text(name) in self._names:
                self._indices.add(index)
                return True
            self._indices.discard(index)
        return ours


def _drop_caused_by(ports: Collection[int]) -> tuple[Instruction, ...]:
    """A socket filter that drops the notifications of changes that these netlink ports made."""
    # Classic BPF loads in network byte order; a netlink header is in that of the host.
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
