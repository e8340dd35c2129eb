"""What the kernel tells about our interface: somebody has changed its qdiscs, classes, filters, addresses or itself.

Rules have no such notification (iptables-legacy has no netlink), nor have sets; their changes are found by the audit.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR, RTMGRP_LINK, RTMGRP_TC

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from pyroute2.netlink import nlmsg

_log = logging.getLogger("mptcp-throttled")

_GROUPS: Final = RTMGRP_LINK | RTMGRP_TC | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR
_REOPEN_SECONDS: Final = 1.0


class Notifications(threading.Thread):
    """Calls `changed`, from this thread, after every change that another netlink port than `own_ports` has made."""

    def __init__(self, interface: str, own_ports: Collection[int], changed: Callable[[], None]) -> None:
        super().__init__(name="notifications", daemon=True)
        self._interface = interface
        self._own_ports = own_ports
        self._changed = changed
        self._index: int | None = None

    def run(self) -> None:
        """Listen for as long as the process lives."""
        while True:
            try:
                self._listen()
            except (OSError, NetlinkError) as error:
                # ENOBUFS above all: more happened than the socket holds. Then something has changed for certain.
                _log.warning("notifications of the kernel lost: %s", error)
                self._changed()
                time.sleep(_REOPEN_SECONDS)

    def _listen(self) -> None:
        with IPRoute() as ip:
            ip.bind(groups=_GROUPS)
            with contextlib.suppress(OSError):
                self._index = socket.if_nametoindex(self._interface)
            while True:
                if self._concern_us(ip.get()):
                    self._changed()

    def _concern_us(self, messages: Iterable[nlmsg]) -> bool:
        concern_us = False
        for message in messages:
            concern_us |= self._concerns_us(message)
        return concern_us

    def _concerns_us(self, message: nlmsg) -> bool:
        # pyroute2 0.9.7 decodes no classic BPF filter: what has no index may be ours.
        index = message.get("index")
        ours = index is None or index == self._index
        if message.get("event") in {"RTM_NEWLINK", "RTM_DELLINK"}:
            named = str(message.get_attr("IFLA_IFNAME")) == self._interface
            if named or ours:
                self._index = index if named else None
            ours |= named
        return ours and int(message["header"]["pid"]) not in self._own_ports
