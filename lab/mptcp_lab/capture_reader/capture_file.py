"""Frames of pcap and pcapng files (draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng).

Scapy's readers (2.8.0) end silently at a cut or damaged record, allocate whatever length a block claims, fail on
Simple Packet Blocks, and ignore `if_tsoffset`. Here memory is bounded whatever the file contains.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import BinaryIO, Final, NamedTuple

_MAX_FRAME_BYTES: Final = 262_144  # libpcap: MAXIMUM_SNAPLEN
_MAX_BLOCK_BYTES: Final = 16 * 2**20  # libpcap, sf-pcapng.c: MAX_BLOCKSIZE
_MAX_INTERFACES: Final = 2**16
"""As many as a Packet Block can name."""

# The magic number of a pcap file, as it is in the file: byte order, and ticks per second.
_PCAP: Final = {
    bytes.fromhex("d4c3b2a1"): ("<", 10**6),
    bytes.fromhex("a1b2c3d4"): (">", 10**6),
    bytes.fromhex("4d3cb2a1"): ("<", 10**9),
    bytes.fromhex("a1b23c4d"): (">", 10**9),
}
_LINK_TYPE: Final = 0xFFFF
"""In pcap, the upper bits give the length of the frame check sequence at the end of each frame, if any."""

_SECTION_HEADER: Final = bytes.fromhex("0a0d0d0a")
_BYTE_ORDERS: Final = {bytes.fromhex("4d3c2b1a"): "<", bytes.fromhex("1a2b3c4d"): ">"}
_END_OF_OPTIONS, _IF_TSRESOL, _IF_TSOFFSET = 0, 9, 14


class _Block(IntEnum):
    SECTION_HEADER = 0x0A0D0D0A
    INTERFACE_DESCRIPTION = 1
    PACKET = 2
    SIMPLE_PACKET = 3
    ENHANCED_PACKET = 6


class Damaged(ValueError):
    """Not a capture file, or truncated, or contradictory. The frames before the damage are valid."""


class FileFrame(NamedTuple):
    """A frame of a link type (pcap-linktype(7)), at `at` seconds since the epoch; None if the file does not say."""

    link_type: int
    data: bytes
    at: float | None


class _Interface(NamedTuple):
    link_type: int
    snap_bytes: int
    ticks_per_second: int
    offset_seconds: int


def read_frames(file: BinaryIO) -> Iterator[FileFrame]:
    """The frames of a pcap or pcapng file. Raises Damaged and OSError."""
    magic = file.read(4)
    if magic in _PCAP:
        return _read_pcap(file, *_PCAP[magic])
    if magic == _SECTION_HEADER:
        return _read_pcapng(file)
    raise Damaged("is not a pcap or pcapng file")


def _read_pcap(file: BinaryIO, order: str, ticks_per_second: int) -> Iterator[FileFrame]:
    link_type = struct.unpack(f"{order}16xI", _exactly(file, 20))[0] & _LINK_TYPE
    header = struct.Struct(f"{order}III4x")
    while start := file.read(header.size):
        seconds, ticks, length = header.unpack(start + _exactly(file, header.size - len(start)))
        if length > _MAX_FRAME_BYTES:
            raise Damaged(f"is damaged: a frame of {length} bytes")
        yield FileFrame(link_type, _exactly(file, length), seconds + ticks / ticks_per_second)


def _read_pcapng(file: BinaryIO) -> Iterator[FileFrame]:
    interfaces: list[_Interface] = []
    for order, kind, body in _blocks(file):
        try:
            frame = _read_block(order, kind, body, interfaces)
        except (struct.error, IndexError) as error:
            raise Damaged(f"is damaged: a block of type {kind} with a body of {len(body)} bytes") from error
        if frame is not None:
            yield frame


def _blocks(file: BinaryIO) -> Iterator[tuple[str, int, bytes]]:
    """Byte order, type and body of each block; the type of the first has been read."""
    order, kind = "<", _SECTION_HEADER
    while kind:
        kind += _exactly(file, 4 - len(kind))
        length, body = _exactly(file, 4), b""
        if kind == _SECTION_HEADER:
            body = _exactly(file, 4)
            if body not in _BYTE_ORDERS:
                raise Damaged(f"is damaged: a section with byte order {body.hex()}")
            order = _BYTE_ORDERS[body]
        total = struct.unpack(f"{order}I", length)[0]
        rest = total - 12 - len(body)
        if rest < 0 or total % 4 or total > _MAX_BLOCK_BYTES:
            raise Damaged(f"is damaged: a block of {total} bytes")
        body += _exactly(file, rest)
        if _exactly(file, 4) != length:
            raise Damaged("is damaged: a block with two lengths")
        yield order, struct.unpack(f"{order}I", kind)[0], body
        kind = file.read(4)


def _read_block(order: str, kind: int, body: bytes, interfaces: list[_Interface]) -> FileFrame | None:
    """The frame of a block, if it has one; adds to `interfaces`. Raises struct.error, IndexError, Damaged."""
    match kind:
        case _Block.SECTION_HEADER:
            interfaces.clear()
        case _Block.INTERFACE_DESCRIPTION:
            if len(interfaces) == _MAX_INTERFACES:
                raise Damaged(f"is damaged: more than {_MAX_INTERFACES} interfaces")
            interfaces.append(_interface(order, body))
        case _Block.SIMPLE_PACKET:
            interface = interfaces[0]
            length = min(struct.unpack_from(f"{order}I", body)[0], interface.snap_bytes or len(body))
            return FileFrame(interface.link_type, body[4 : 4 + length], None)
        case _Block.PACKET | _Block.ENHANCED_PACKET:
            number, high, low, length = struct.unpack_from(
                f"{order}{'H2x' if kind == _Block.PACKET else 'I'}III4x", body
            )
            interface, data = interfaces[number], body[20 : 20 + length]
            if len(data) < length:
                raise Damaged(f"is damaged: a frame of {length} bytes in a block of {len(body)}")
            at = interface.offset_seconds + (high << 32 | low) / interface.ticks_per_second
            return FileFrame(interface.link_type, data, at)
    return None


def _interface(order: str, body: bytes) -> _Interface:
    """An Interface Description Block."""
    link_type, snap_bytes = struct.unpack_from(f"{order}H2xI", body)
    options, start = {_IF_TSRESOL: b"\x06", _IF_TSOFFSET: bytes(8)}, 8
    while start + 4 <= len(body):
        code, length = struct.unpack_from(f"{order}HH", body, start)
        if code == _END_OF_OPTIONS:
            break
        options[code] = body[start + 4 : start + 4 + length]
        start += 4 + length + -length % 4
    (resolution,) = struct.unpack("B", options[_IF_TSRESOL])
    ticks_per_second = 2 ** (resolution & 0x7F) if resolution & 0x80 else 10**resolution
    return _Interface(link_type, snap_bytes, ticks_per_second, *struct.unpack(f"{order}q", options[_IF_TSOFFSET]))


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise Damaged("is truncated")
    return data
