"""The data packets of MPTCP connections in a capture at the receiver, each with its place in the connection."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_lab.disorder.mappings import DataMapping, data_mapping
from mptcp_sniffer.handshake import token_of
from mptcp_sniffer.options import MpCapable, MpJoinSyn, decode
from mptcp_sniffer.segment import (
    IPV6_HEADER_BYTES,
    PROTOCOL_TCP,
    TCP_FIXED_BYTES,
    Flag,
    Malformed,
    PackedEndpoint,
    Segment,
    parse_ip_header,
    parse_tcp,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mptcp_lab.capture_reader.capture_file import FileFrame

LINK_TYPE: Final = "LINUX_SLL2"
"""The link type of captures of all interfaces of a host together, as tcpdump(8) names it."""

# pcap-linktype(7): LINUX_SLL2
_LINK_TYPE: Final = 276
_LINK_HEADER_BYTES: Final = 20


class Arrival(NamedTuple):
    """A packet with data of a subflow, which is known by the sender's address and port.

    `offset` and `connection_offset` are those of its first of `size` bytes in the subflow and in the connection.
    """

    at: float
    subflow: PackedEndpoint
    offset: int
    connection_offset: int
    size: int


@dataclass(slots=True)
class _Subflow:
    """A subflow: the token of its connection, the number of its first byte, how far it has come, and a mapping."""

    token: int
    first: int
    highest: int = 0
    mapping: DataMapping | None = None


class _Connections:
    """Which subflows belong together: a first packet has the keys, a JOIN the token (RFC 8684, section 3)."""

    def __init__(self) -> None:
        self.arrivals: defaultdict[int, list[Arrival]] = defaultdict(list)
        self._subflows: dict[PackedEndpoint, _Subflow] = {}
        self._first_bytes: dict[int, int] = {}
        self._highest: defaultdict[int, int] = defaultdict(int)

    def add(self, at: float, segment: Segment, size: int) -> None:
        """A packet has arrived."""
        for option in decode(segment.options, segment.flags).options:
            if isinstance(option, MpJoinSyn):
                first = (segment.sequence + 1) % 2**32
                self._subflows[segment.source] = _Subflow(option.token, first)
            elif isinstance(option, MpCapable) and option.sender_key and option.receiver_key:
                self._begin(segment, option.sender_key, option.receiver_key)
        subflow = self._subflows.get(segment.source)
        if subflow is None or not size or segment.flags & Flag.SYN:
            return
        subflow.mapping = data_mapping(segment.options, segment.flags) or subflow.mapping
        offset = _nearest((segment.sequence - subflow.first) % 2**32, 32, subflow.highest)
        subflow.highest = max(subflow.highest, offset)
        place = self._place(subflow, offset)
        if place is not None:
            self.arrivals[subflow.token].append(Arrival(at, segment.source, offset, place, size))

    def _begin(self, segment: Segment, sender: bytes, receiver: bytes) -> None:
        token = token_of(1, receiver)
        if segment.source not in self._subflows:
            self._subflows[segment.source] = _Subflow(token, segment.sequence)
        # The initial data sequence number, of the SYN, is made of the key, too.
        self._first_bytes[token] = int.from_bytes(sha256(sender).digest()[-8:]) + 1

    def _place(self, subflow: _Subflow, offset: int) -> int | None:
        """Where this byte of the subflow is in the connection; None if no mapping says so."""
        mapping, token = subflow.mapping, subflow.token
        if mapping is None or token not in self._first_bytes:
            return None
        within = offset + 1 - _nearest(mapping.subflow_sequence, 32, offset + 1)
        if not 0 <= within < mapping.length:
            return None
        if mapping.data_sequence is None:
            return within
        begin = (mapping.data_sequence - self._first_bytes[token]) % (1 << mapping.bits)
        place = _nearest(begin, mapping.bits, self._highest[token]) + within
        self._highest[token] = max(self._highest[token], place)
        return place


def _nearest(number: int, bits: int, to: int) -> int:
    """The number nearest `to` of those with these lower bits."""
    half = 1 << bits - 1
    return to + (number - to + half) % (1 << bits) - half


def find_arrivals(frames: Iterable[FileFrame], port: int) -> Mapping[int, Sequence[Arrival]]:
    """The data packets to this port, by token and in the order of the capture, of connections that it saw begin.

    Packets may be cut off behind their TCP options. Raises ValueError for frames of another link type.
    """
    connections = _Connections()
    for frame in frames:
        if frame.link_type != _LINK_TYPE or frame.at is None:
            raise ValueError(f"link type {frame.link_type}; allowed: {_LINK_TYPE} ({LINK_TYPE}), with times")
        try:
            segment = _segment(frame.data[_LINK_HEADER_BYTES:])
        except Malformed:
            continue
        if segment is not None and segment[0].destination.port == port:
            connections.add(frame.at, *segment)
    return connections.arrivals


def _segment(packet: bytes) -> tuple[Segment, int] | None:
    """A TCP segment and how many bytes of data it had. Raises Malformed."""
    header = parse_ip_header(packet)
    if header is None or header[0] != PROTOCOL_TCP:
        return None
    segment = parse_tcp(packet, *header[1:])
    is_v4 = packet[0] >> 4 == 4
    total = int.from_bytes(packet[2:4]) if is_v4 else IPV6_HEADER_BYTES + int.from_bytes(packet[4:6])
    return segment, total - header[1] - TCP_FIXED_BYTES - len(segment.options)
