"""Capture files for tests, built byte by byte from the drafts, independent of our reader and of Scapy."""

from struct import pack

ETHERNET, RAW = 1, 101
MICROSECONDS, NANOSECONDS = 0xA1B2C3D4, 0xA1B23C4D
DATA = b"frame"


def pcap(*frames: bytes, order: str = "<", magic: int = MICROSECONDS, link_type: int = ETHERNET) -> bytes:
    """The frames come one a second, at half past."""
    half = 5 * 10**5 if magic == MICROSECONDS else 5 * 10**8
    records = [pack(f"{order}IIII", 1 + n, half, len(data), 1500) + data for n, data in enumerate(frames)]
    return pack(f"{order}IHHIIII", magic, 2, 4, 0, 0, 65535, link_type) + b"".join(records)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += bytes(-len(body) % 4)
    length = pack(f"{order}I", len(body) + 12)
    return pack(f"{order}I", kind) + length + body + length


def section(order: str = "<") -> bytes:
    return block(0x0A0D0D0A, pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(*options: tuple[int, bytes], link_type: int = ETHERNET, snap_bytes: int = 0, order: str = "<") -> bytes:
    encoded = b"".join(pack(f"{order}HH", code, len(v)) + v + bytes(-len(v) % 4) for code, v in options)
    return block(1, pack(f"{order}HHI", link_type, 0, snap_bytes) + encoded, order)


def packet(ticks: int, data: bytes = DATA, of: int = 0, order: str = "<") -> bytes:
    return block(6, pack(f"{order}IIIII", of, ticks >> 32, ticks & 0xFFFF_FFFF, len(data), 1500) + data, order)


def old_packet(ticks: int, data: bytes = DATA) -> bytes:
    return block(2, pack("<HHIIII", 0, 7, ticks >> 32, ticks & 0xFFFF_FFFF, len(data), 1500) + data)


def simple_packet(data: bytes = DATA, original_bytes: int = len(DATA)) -> bytes:
    return block(3, pack("<I", original_bytes) + data)
