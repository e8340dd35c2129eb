"""Elements of our nftables maps, encoded for netlink: a subflow's addresses and ports, and its class.

All elements of one IP version have the same length and the same attribute headers, so one `struct` encodes or decodes
them: docs/explanation/own-code.md has what that saves. The kernel lists them in the form in which it takes them.
"""

from __future__ import annotations

import socket
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from struct import Struct
from typing import Final

from mptcp_throttle.model import Address, Endpoint, FourTuple
from mptcp_throttled.vocabulary.class_ids import classid, minor_of

# include/uapi/linux/netfilter/nf_tables.h: NFTA_LIST_ELEM, NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_DATA, NFTA_DATA_VALUE
_ELEMENT, _KEY, _DATA, _VALUE = 1, 1, 2, 1
_ATTRIBUTE: Final = Struct("=HH")
_HEADER_BYTES: Final = _ATTRIBUTE.size
_CLASS_BYTES: Final = 4

KEY_BYTES: Final = {4: 16, 6: 40}
"""Client address and port, proxy address and port; each is padded to registers of 4 bytes."""

_ADDRESSES: Final[dict[int, type[Address]]] = {4: IPv4Address, 6: IPv6Address}


class _Layout:
    """The attributes in the order in which the kernel lists them (nf_tables_fill_setelem, nf_tables_api.c)."""

    def __init__(self, ip_version: int) -> None:
        key = KEY_BYTES[ip_version]
        address = key // 2 - 4
        # Ports have network byte order, the class that of the host.
        self._struct = Struct(f"={3 * _HEADER_BYTES}s{address}sH2x{address}sH2x{2 * _HEADER_BYTES}sI")
        self.size = self._struct.size
        self._before_key = b"".join(
            (
                _ATTRIBUTE.pack(self.size, _ELEMENT),
                _ATTRIBUTE.pack(2 * _HEADER_BYTES + key, _KEY),
                _ATTRIBUTE.pack(_HEADER_BYTES + key, _VALUE),
            )
        )
        self._before_class = _ATTRIBUTE.pack(2 * _HEADER_BYTES + _CLASS_BYTES, _DATA) + _ATTRIBUTE.pack(
            _HEADER_BYTES + _CLASS_BYTES, _VALUE
        )
        self._address = _ADDRESSES[ip_version]

    def encode(self, ends: FourTuple, minor: int) -> bytes:
        client, proxy = ends.client, ends.proxy
        return self._struct.pack(
            self._before_key,
            client.address.packed,
            socket.htons(client.port),
            proxy.address.packed,
            socket.htons(proxy.port),
            self._before_class,
            classid(minor),
        )

    def decode(self, raw: bytes) -> tuple[FourTuple, int] | None:
        if len(raw) != self.size:
            return None
        before_key, client, client_port, proxy, proxy_port, before_class, class_id = self._struct.unpack(raw)
        minor = minor_of(class_id)
        if (before_key, before_class) != (self._before_key, self._before_class) or not minor:
            return None
        ends = FourTuple(
            Endpoint(self._address(client), socket.ntohs(client_port)),
            _proxy(self._address(proxy), socket.ntohs(proxy_port)),
        )
        return ends, minor


_LAYOUTS: Final = {4: _Layout(4), 6: _Layout(6)}
MAP_ELEMENT_BYTES: Final = {version: layout.size for version, layout in _LAYOUTS.items()}


def encode_map_element(ends: FourTuple, minor: int) -> bytes:
    """An element for the kernel to add or delete."""
    return _LAYOUTS[ends.client.address.version].encode(ends, minor)


def decode_map_element(raw: bytes, ip_version: int) -> tuple[FourTuple, int] | None:
    """An element of `MAP_ELEMENT_BYTES` that the kernel has listed; None if it differs from any that we add."""
    return _LAYOUTS[ip_version].decode(raw)


# All subflows end at a few proxy sockets, so equal values share one object.
@lru_cache
def _proxy(address: Address, port: int) -> Endpoint:
    return Endpoint(address, port)
