"""Sends forged SYNs at a given rate: `python -m mptcp_lab.benchmarks.syn_flood INTERFACE MAC PROXY PORT RATE SECONDS`.

Half of them ask to open a connection (MP_CAPABLE), half to join one that does not exist (MP_JOIN). They come from
random ports and from random addresses of 198.18.0.0/15 (RFC 2544: for benchmarks).
"""

from __future__ import annotations

import random
import socket
import sys
import time
from typing import Final

from mptcp_lab.benchmarks.frames import SYN, End, Hop, ipv4_frame

SOURCES: Final = "198.18.0.0/15"

_random = random.Random(1)  # noqa: S311
_FRAMES: Final = 2**17
_BATCH: Final = 50


def _frame(hop: Hop, proxy: End, *, join: bool) -> bytes:
    address = (0xC612_0000 | _random.getrandbits(17)).to_bytes(4)
    option = bytes([30, 12, 0x10, 1]) + _random.randbytes(8) if join else bytes([30, 4, 0x01, 0x01])
    source = End(address, _random.randrange(1024, 65536))
    return ipv4_frame(hop, source, proxy, SYN, option, sequence=_random.getrandbits(32))


def flood(interface: str, router: str, proxy: str, port: int, rate: int, seconds: float) -> int:
    """Send for `seconds`, at most `rate` frames per second; returns how many were sent."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
        sock.bind((interface, 0))
        own = sock.getsockname()[4]
        hop, end = Hop(bytes.fromhex(router.replace(":", "")), own), End(socket.inet_aton(proxy), port)
        frames = [_frame(hop, end, join=bool(number % 2)) for number in range(_FRAMES)]
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
