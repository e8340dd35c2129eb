"""TCP segments in Ethernet frames, as packet sockets send them."""

from __future__ import annotations

import socket
from struct import Struct
from typing import Final, NamedTuple

SYN, ACK = 0x02, 0x10

_ETHERNET: Final = Struct("!6s6sH")
_IPV4: Final = Struct("!BBHHHBBH4s4s")
_TCP: Final = Struct("!HHIIBBHHH")
_PSEUDO: Final = Struct("!4s4sBBH")


class Hop(NamedTuple):
    """The hardware addresses of a hop."""

    destination: bytes
    source: bytes


class End(NamedTuple):
    """An end of a TCP connection: 4 address bytes, and the port."""

    address: bytes
    port: int


def ipv4_frame(
    hop: Hop, source: End, destination: End, flags: int, option: bytes, *, sequence: int, acknowledgment: int = 0
) -> bytes:
    """A segment without data, with right checksums. `option` must be padded to words."""
    fields = (source.port, destination.port, sequence, acknowledgment, (20 + len(option)) << 2, flags, 65535)
    unsummed = _TCP.pack(*fields, 0, 0) + option
    pseudo = _PSEUDO.pack(source.address, destination.address, 0, socket.IPPROTO_TCP, len(unsummed))
    tcp = _TCP.pack(*fields, _checksum(pseudo + unsummed), 0) + option
    header = (0x45, 0, 20 + len(tcp), 0, 0x4000, 64, socket.IPPROTO_TCP)
    ends = (source.address, destination.address)
    ip = _IPV4.pack(*header, _checksum(_IPV4.pack(*header, 0, *ends)), *ends)
    return _ETHERNET.pack(*hop, 0x0800) + ip + tcp


def _checksum(data: bytes) -> int:
    total = sum(int.from_bytes(data[i : i + 2]) for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
