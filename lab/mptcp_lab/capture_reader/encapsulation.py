"""The TCP segment in a frame of a capture file, however it is wrapped: VLANs, PPPoE, MPLS, GRE, IP in IP, VXLAN.

Captures are taken anywhere on a path. The service parses its own captures with `segment`, which is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from mptcp_sniffer.segment import PROTOCOL_TCP, Malformed, Segment, parse_ip_header, parse_tcp

_MAX_HEADERS: Final = 32
"""Picked arbitrarily; it bounds the time that a frame of nothing but headers takes."""

_VXLAN_PORTS: Final = frozenset({4789, 8472})
"""The port of RFC 7348, and the default of Linux (drivers/net/vxlan)."""

_ETHERTYPES_WITHOUT_TCP: Final = frozenset({0x0806, 0x8035, 0x8808, 0x8809, 0x8863, 0x888E, 0x88CC})
"""ARP, RARP, flow control, slow protocols (LACP), PPPoE discovery, EAPOL, LLDP."""

_FIRST_ETHERTYPE: Final = 0x0600
"""A smaller number is the length of an IEEE 802.3 frame, such as those of the spanning tree protocol."""

_FIRST_PPP_CONTROL: Final = 0x4000
"""PPP protocols from here on configure the link (RFC 1661, section 2)."""

_PROTOCOLS_WITHOUT_TCP: Final = frozenset({1, 2, 58, 59, 88, 89, 103, 112, 132})
"""ICMP, IGMP, ICMPv6, no next header, EIGRP, OSPF, PIM, VRRP, SCTP."""

_FRAGMENT: Final = 44
_EXTENSIONS: Final[dict[int, Callable[[int], int]]] = {
    **dict.fromkeys((0, 43, 60), lambda length: 8 * (length + 1)),
    _FRAGMENT: lambda _: 8,
    51: lambda length: 4 * (length + 2),
}
"""IPv6 extension headers (RFC 8200, section 4; RFC 4302) and their size, given their second byte."""


class Undecoded(ValueError):
    """The frame carries data that is not decoded and may be TCP; the text names it."""


class _Wrapped(NamedTuple):
    """What a header leads to: the bytes after it, and how to read them."""

    read: Callable[[bytes], Segment | _Wrapped | None]
    data: bytes


def find_segment(link_type: int, frame: bytes) -> Segment | None:
    """The innermost TCP segment of a frame; None if it has none.

    Raises Malformed if a header is truncated, and Undecoded.
    """
    if link_type not in _LINKS:
        raise Undecoded(f"link type {link_type}")
    inner: Segment | _Wrapped | None = _Wrapped(_LINKS[link_type], frame)
    for _ in range(_MAX_HEADERS):
        if not isinstance(inner, _Wrapped):
            return inner
        inner = inner.read(inner.data)
    raise Undecoded(f"more than {_MAX_HEADERS} headers")


def _number(data: bytes, start: int, size: int = 2) -> int:
    if len(data) < start + size:
        raise Malformed("header cut off")
    return int.from_bytes(data[start : start + size])


def _ethernet(frame: bytes) -> _Wrapped | None:
    return _of_ethertype(_number(frame, 12), frame[14:])


def _cooked(frame: bytes) -> _Wrapped | None:
    return _of_ethertype(_number(frame, 14), frame[16:])


def _cooked_v2(frame: bytes) -> _Wrapped | None:
    return _of_ethertype(_number(frame, 0), frame[20:])


def _of_ethertype(ethertype: int, data: bytes) -> _Wrapped | None:
    if ethertype in _ETHERTYPES:
        return _Wrapped(_ETHERTYPES[ethertype], data)
    if ethertype < _FIRST_ETHERTYPE or ethertype in _ETHERTYPES_WITHOUT_TCP:
        return None
    raise Undecoded(f"ethertype {ethertype:#06x}")


def _vlan(data: bytes) -> _Wrapped | None:
    return _of_ethertype(_number(data, 2), data[4:])


def _mpls(data: bytes) -> _Wrapped | None:
    """A label (RFC 3032). After the last label only the first four bits of the payload tell what it is (RFC 4928)."""
    is_last = _number(data, 2) & 0x0100
    if not is_last:
        return _Wrapped(_mpls, data[4:])
    if _number(data, 4, 1) >> 4 in (4, 6):
        return _Wrapped(_ip, data[4:])
    raise Undecoded("MPLS that carries no IP")


def _pppoe(data: bytes) -> _Wrapped | None:
    """RFC 2516: a header of 6 bytes, and the protocol of PPP."""
    protocol = _number(data, 6)
    if protocol in _PPP_PROTOCOLS:
        return _Wrapped(_PPP_PROTOCOLS[protocol], data[8:])
    if protocol >= _FIRST_PPP_CONTROL:
        return None
    raise Undecoded(f"PPP protocol {protocol:#06x}")


def _ip(packet: bytes) -> Segment | _Wrapped | None:
    header = parse_ip_header(packet)
    if header is None:
        return None
    protocol, start, source, destination = header
    while protocol in _EXTENSIONS:
        if protocol == _FRAGMENT and _number(packet, start + 2) & 0xFFF8:
            return None
        length = _EXTENSIONS[protocol](_number(packet, start + 1, 1))
        protocol, start = packet[start], start + length
    if protocol == PROTOCOL_TCP:
        return parse_tcp(packet, start, source, destination)
    if protocol in _PROTOCOLS:
        return _Wrapped(_PROTOCOLS[protocol], packet[start:])
    if protocol in _PROTOCOLS_WITHOUT_TCP:
        return None
    raise Undecoded(f"IP protocol {protocol}")


def _gre(data: bytes) -> _Wrapped | None:
    """RFC 2784 and RFC 2890: the flags C, K and S stand for four more bytes each."""
    flags = _number(data, 0)
    if flags & 0x4007:
        raise Undecoded("GRE with routing or of another version")
    return _of_ethertype(_number(data, 2), data[4 + 4 * (flags & 0xB000).bit_count() :])


def _udp(data: bytes) -> _Wrapped | None:
    """VXLAN (RFC 7348) by its port and its flag I."""
    is_vxlan = _number(data, 2) in _VXLAN_PORTS and _number(data, 8, 1) & 0x08
    return _Wrapped(_ethernet, data[16:]) if is_vxlan else None


_ETHERTYPES: Final = {
    **dict.fromkeys((0x0800, 0x86DD), _ip),
    **dict.fromkeys((0x8100, 0x88A8, 0x9100), _vlan),
    **dict.fromkeys((0x8847, 0x8848), _mpls),
    0x8864: _pppoe,
    0x6558: _ethernet,  # Transparent Ethernet Bridging, in GRE
}
_PPP_PROTOCOLS: Final = {0x0021: _ip, 0x0057: _ip, 0x0281: _mpls}
_PROTOCOLS: Final = {4: _ip, 41: _ip, 17: _udp, 47: _gre, 137: _mpls}
# pcap-linktype(7)
_LINKS: Final = {
    1: _ethernet,
    **dict.fromkeys((12, 14, 101, 228, 229), _ip),
    113: _cooked,
    276: _cooked_v2,
}
