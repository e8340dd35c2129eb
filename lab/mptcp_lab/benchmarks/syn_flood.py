"""Sends forged SYNs at a given rate: `python -m mptcp_lab.benchmarks.syn_flood INTERFACE MAC PROXY PORT RATE SECONDS`.

Half of them ask to open a connection (MP_CAPABLE), half to join one that does not exist (MP_JOIN), from addresses and
ports at random in 198.18.0.0/15 (RFC 2544: for benchmarks).
"""

from __future__ import annotations

import random
import socket
import sys
import time
from struct import Struct
from typing import Final

SOURCES: Final = "198.18.0.0/15"

_random = random.Random(1)  # noqa: S311
_FRAMES: Final = 2**17
_BATCH: Final = 50
_ETHERNET: Final = Struct("!6s6sH")
_IPV4: Final = Struct("!BBHHHBBH4s4s")
_TCP: Final = Struct("!HHIIBBHHH")
_PSEUDO: Final = Struct("!4s4sBBH")


def _checksum(data: bytes) -> int:
    total = sum(int.from_bytes(data[i : i + 2]) for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _frame(router: bytes, own: bytes, proxy: bytes, port: int, *, join: bool) -> bytes:
    source = (0xC612_0000 | _random.getrandbits(17)).to_bytes(4)
    option = bytes([30, 12, 0x10, 1]) + _random.randbytes(8) if join else bytes([30, 4, 0x01, 0x01])
    fields = (_random.randrange(1024, 65536), port, _random.getrandbits(32), 0, (20 + len(option)) << 2, 0x02, 65535)
    unsummed = _TCP.pack(*fields, 0, 0) + option
    pseudo = _PSEUDO.pack(source, proxy, 0, socket.IPPROTO_TCP, len(unsummed))
    tcp = _TCP.pack(*fields, _checksum(pseudo + unsummed), 0) + option
    header = (0x45, 0, 20 + len(tcp), 0, 0x4000, 64, socket.IPPROTO_TCP)
    ip = _IPV4.pack(*header, _checksum(_IPV4.pack(*header, 0, source, proxy)), source, proxy)
    return _ETHERNET.pack(router, own, 0x0800) + ip + tcp


def flood(interface: str, router: str, proxy: str, port: int, rate: int, seconds: float) -> int:
    """Send for `seconds`, at most `rate` frames per second; returns how many were sent."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
        sock.bind((interface, 0))
        own = sock.getsockname()[4]
        mac, address = bytes.fromhex(router.replace(":", "")), socket.inet_aton(proxy)
        frames = [_frame(mac, own, address, port, join=bool(number % 2)) for number in range(_FRAMES)]
        print("ready", flush=True)
        sent, began = 0, time.monotonic()
        while (elapsed := time.monotonic() - began) < seconds:
            if sent > elapsed * rate:
                time.sleep(_BATCH / rate)
                continue
            for number in range(sent, sent + _BATCH):
                sock.send(frames[number % _FRAMES])
            sent += _BATCH
    return sent


if __name__ == "__main__":
    interface, mac, proxy, port, rate, seconds = sys.argv[1:]
    print(flood(interface, mac, proxy, int(port), int(rate), float(seconds)))
