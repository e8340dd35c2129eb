"""The interfaces of the best default routes of this network namespace, by a dump of its main table (RTM_GETROUTE).

Not by pyroute2, whose `get_default_routes` (0.9) ends at the first datagram without a default route: in a table of some
hundred routes it misses the route, or leaves the rest of the dump unread, and the next request is refused (EBUSY).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from functools import partial
from struct import Struct
from typing import Final, NamedTuple

from mptcp_throttle.linux.kernel_error import decoding_errors
from mptcp_throttle.linux.netlink_codec import attributes
from mptcp_throttle.linux.netlink_socket import NetlinkSocket, Request, read_consistently

# include/uapi/linux/rtnetlink.h
_RTM_GETROUTE: Final = 26
_ROUTE: Final = Struct("=8BI")  # struct rtmsg
_NEXT_HOP: Final = Struct("=HBBi")  # struct rtnexthop
_NUMBER: Final = Struct("=I")
_RT_TABLE_MAIN: Final = 254
_RTN_UNICAST: Final = 1
_RTA_OIF, _RTA_PRIORITY, _RTA_MULTIPATH = 4, 6, 9
_WANTED: Final = frozenset({_RTA_OIF, _RTA_PRIORITY, _RTA_MULTIPATH})


class _Route(NamedTuple):
    """A default route: its metric, and the indexes of the interfaces through which it leaves."""

    metric: int
    interfaces: tuple[int, ...]


def default_interfaces() -> tuple[int, ...]:
    """The indexes of the interfaces of the best default route of IPv4, then of IPv6. Raises KernelError."""
    best: list[int] = []
    with NetlinkSocket(socket.NETLINK_ROUTE) as netlink:
        for family, version in ((socket.AF_INET, 4), (socket.AF_INET6, 6)):
            request = Request(f"ip -{version} route show default", _RTM_GETROUTE, 0, _ROUTE.pack(family, *[0] * 8))
            routes = read_consistently(partial(_default_routes, netlink, request))
            if routes:
                best += min(routes, key=lambda route: route.metric).interfaces
    return tuple(best)


def _default_routes(netlink: NetlinkSocket, request: Request) -> list[_Route]:
    with decoding_errors(request.what):
        return [
            _Route(_number(parts, _RTA_PRIORITY) or 0, tuple(_interfaces(parts)))
            for payload in netlink.stream(request)
            if _is_default(payload)
            for parts in (attributes(payload, _ROUTE.size, only=_WANTED),)
        ]


def _is_default(payload: bytes) -> bool:
    _, destination_bits, _, _, table, _, _, kind, _ = _ROUTE.unpack_from(payload)
    return (destination_bits, table, kind) == (0, _RT_TABLE_MAIN, _RTN_UNICAST)


def _number(parts: Mapping[int, bytes], kind: int) -> int | None:
    return None if kind not in parts else int(_NUMBER.unpack(parts[kind])[0])


def _interfaces(parts: Mapping[int, bytes]) -> Iterator[int]:
    if (output := _number(parts, _RTA_OIF)) is not None:
        yield output
    hops, offset = parts.get(_RTA_MULTIPATH, b""), 0
    while offset + _NEXT_HOP.size <= len(hops):
        length, _, _, index = _NEXT_HOP.unpack_from(hops, offset)
        yield index
        offset += max((length + 3) & ~3, _NEXT_HOP.size)
