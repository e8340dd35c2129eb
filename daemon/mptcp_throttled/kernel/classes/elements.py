"""Elements of our ipsets, encoded for netlink: a subflow's client and proxy addresses, client port, and packet mark.

All elements of one IP version have the same length and the same attribute headers, so one `struct` encodes or decodes
them: 1000 take 1.3 ms to encode (pyroute2: 470 ms), and a set may hold tens of thousands.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from struct import Struct
from typing import Final, NamedTuple

from mptcp_throttle.model import Address

# include/uapi/linux/netfilter/ipset/ip_set.h; include/uapi/linux/netlink.h; include/uapi/linux/in.h
_DATA, _IP, _PORT, _PROTO, _IP2, _SKBMARK = 7, 1, 4, 7, 20, 27
_IPADDR: Final = {4: 1, 6: 2}
_NESTED: Final = 0x8000
_NET_BYTEORDER: Final = 0x4000
_TCP: Final = 6

_ADDRESS_BYTES: Final = {4: 4, 6: 16}
_ADDRESSES: Final[dict[int, type[Address]]] = {4: IPv4Address, 6: IPv6Address}
_ATTRIBUTE: Final = Struct("=HH")


class Element(NamedTuple):
    """Packets to this client address and port, from this proxy address, get `mark` in the bits of `mask`."""

    client: Address
    port: int
    proxy: Address
    mark: int
    mask: int


class _Layout:
    """The attributes in the order in which the kernel lists them (hash_ipportip4_data_list, ip_set_hash_ipportip.c)."""

    def __init__(self, ip_version: int) -> None:
        size = _ADDRESS_BYTES[ip_version]
        self._struct = Struct(f"!12s{size}s8s{size}s4sH2x4sB3x4sII")
        kind = _IPADDR[ip_version]
        # The kernel requires NLA_F_NET_BYTEORDER on addresses that it receives, but does not set it on those it sends.
        self._read, self._written = (self._headers(size, kind | flag) for flag in (0, _NET_BYTEORDER))
        self._address = _ADDRESSES[ip_version]
        self.size = self._struct.size

    def _headers(self, size: int, kind: int) -> tuple[bytes, ...]:
        address = _ATTRIBUTE.pack(4 + size, kind)
        return (
            _ATTRIBUTE.pack(self._struct.size, _DATA | _NESTED) + _ATTRIBUTE.pack(8 + size, _IP | _NESTED) + address,
            _ATTRIBUTE.pack(8 + size, _IP2 | _NESTED) + address,
            _ATTRIBUTE.pack(6, _PORT | _NET_BYTEORDER),
            _ATTRIBUTE.pack(5, _PROTO),
            _ATTRIBUTE.pack(12, _SKBMARK | _NET_BYTEORDER),
        )

    def encode(self, element: Element) -> bytes:
        ip, ip2, port, proto, skbmark = self._written
        client, proxy = element.client.packed, element.proxy.packed
        return self._struct.pack(
            ip, client, ip2, proxy, port, element.port, proto, _TCP, skbmark, element.mark, element.mask
        )

    def decode(self, raw: bytes) -> Element | None:
        if len(raw) != self.size:
            return None
        ip, client, ip2, proxy, port, number, proto, protocol, skbmark, mark, mask = self._struct.unpack(raw)
        if (ip, ip2, port, proto, skbmark) != self._read or protocol != _TCP:
            return None
        return Element(self._address(client), number, self._address(proxy), mark, mask)


_LAYOUTS: Final = {4: _Layout(4), 6: _Layout(6)}
ELEMENT_BYTES: Final = {version: layout.size for version, layout in _LAYOUTS.items()}


def encode_element(element: Element) -> bytes:
    """An element for the kernel to add or delete."""
    return _LAYOUTS[element.client.version].encode(element)


def decode_element(raw: bytes, ip_version: int) -> Element | None:
    """An element of `ELEMENT_BYTES` that the kernel has listed; None if it differs from any that we add."""
    return _LAYOUTS[ip_version].decode(raw)
