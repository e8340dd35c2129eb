"""tc messages in numbers, and the socket for them."""

from __future__ import annotations

import socket
from struct import Struct
from typing import Final, NamedTuple

from mptcp_throttle.netlink import attributes
from mptcp_throttled.kernel.netlink_requests import NetlinkRequests, Request

_TCMSG: Final = Struct("=BxxxiIII")


class TcMessage(NamedTuple):
    """A qdisc or class of a dump."""

    interface: int
    handle: int
    parent: int
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

    def show(self, what: str, type_: int, index: int = 0) -> list[TcMessage]:
        """All qdiscs or classes, of the interface `index` or of all. Raises KernelError."""
        return [_parse(payload) for payload in self.dump(tc_request(what, type_, 0, index, 0, 0))]


def _parse(payload: bytes) -> TcMessage:
    _, index, handle, parent, _ = _TCMSG.unpack_from(payload)
    return TcMessage(index, handle, parent, attributes(payload[_TCMSG.size :]))
