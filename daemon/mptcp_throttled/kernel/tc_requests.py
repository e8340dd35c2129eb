"""tc messages in numbers, and the socket for them."""

from __future__ import annotations

import socket
from struct import Struct
from typing import Final, NamedTuple

from mptcp_throttle.linux.netlink import attributes
from mptcp_throttle.linux.netlink_requests import NetlinkRequests, Request

_TCMSG: Final = Struct("=BxxxiIII")
# include/uapi/linux/rtnetlink.h: TCA_STATS, TCA_XSTATS, TCA_STATS2. What counts comes last, and is nobody's parameter.
_STATISTICS: Final = frozenset({3, 4, 7})


class TcMessage(NamedTuple):
    """A qdisc, class or filter of a dump, without its statistics; `info` is what tcm_info says of its kind."""

    interface: int
    handle: int
    parent: int
    info: int
    attributes: dict[int, bytes]


def tc_request(
    what: str, type_: int, flags: int, interface: int, handle: int, parent: int, options: bytes = b""
) -> Request:
    """A change of a qdisc or class; `options` are its netlink attributes."""
    return Request(what, type_, flags, _TCMSG.pack(0, interface, handle, parent, 0) + options)


class TcRequests(NetlinkRequests):
    """A socket for tc."""

    def __init__(self) -> None:
        super().__init__(socket.NETLINK_ROUTE)

    def show(self, what: str, type_: int, index: int = 0, parent: int = 0) -> list[TcMessage]:
        """All qdiscs, classes or filters: of the interface `index` or of all, of `parent`. Raises KernelError."""
        return [_parse(payload) for payload in self.dump(tc_request(what, type_, 0, index, 0, parent))]


def _parse(payload: bytes) -> TcMessage:
    _, index, handle, parent, info = _TCMSG.unpack_from(payload)
    return TcMessage(index, handle, parent, info, attributes(payload, _TCMSG.size, _STATISTICS))
