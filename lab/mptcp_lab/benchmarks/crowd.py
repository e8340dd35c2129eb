"""Opens connections that exist only as frames, not in any kernel.

`python -m mptcp_lab.benchmarks.crowd INTERFACE PROXY PORT RATE CLIENTS PER`: CLIENTS clients open PER connections each.
A connection is an MP_CAPABLE handshake over Wi-Fi and an MP_JOIN over Ethernet, with the keys and HMACs of RFC 8684.
All six segments, the proxy's too, are sent on INTERFACE at RATE frames per second. No host has their hardware address,
so only a capture sees them.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import socket
import sys
import time
from collections.abc import Iterator
from typing import Final

from mptcp_lab.benchmarks.frames import ACK, SYN, End, Hop, ipv4_frame

NETWORKS: Final = {"wifi": "10.2.0.0/16", "ethernet": "10.1.0.0/16"}
"""Room for 65 534 clients."""

_ABSENT: Final = bytes.fromhex("020000000001")
_FIRST_PORT: Final = 20000
_BATCH: Final = 25


def handshakes(proxy: End, clients: int, per_client: int) -> Iterator[bytes]:
    """The frames of all connections, in order."""
    hop = Hop(_ABSENT, _ABSENT)
    for number in range(per_client):
        for client in range(clients):
            keys = random.Random(client * per_client + number)  # noqa: S311
            here, there, nonce, answer = (keys.randbytes(size) for size in (8, 8, 4, 4))
            wifi, ethernet = (
                End((base + client + 2).to_bytes(4), _FIRST_PORT + number) for base in (0x0A02_0000, 0x0A01_0000)
            )
            capable = (b"\x1e\x04\x01\x01", b"\x1e\x0c\x01\x01" + there, b"\x1e\x14\x01\x01" + here + there)
            yield from _three_ways(hop, wifi, proxy, capable)
            token = hashlib.sha256(there).digest()[:4]
            proof = hmac.digest(there + here, answer + nonce, "sha256")[:8]
            reply = hmac.digest(here + there, nonce + answer, "sha256")[:20]
            join = (
                b"\x1e\x0c\x10\x01" + token + nonce,
                b"\x1e\x10\x10\x00" + proof + answer,
                b"\x1e\x18\x10\x00" + reply,
            )
            yield from _three_ways(hop, ethernet, proxy, join)


def _three_ways(hop: Hop, client: End, proxy: End, options: tuple[bytes, bytes, bytes]) -> Iterator[bytes]:
    syn, synack, ack = options
    yield ipv4_frame(hop, client, proxy, SYN, syn, sequence=100)
    yield ipv4_frame(hop, proxy, client, SYN | ACK, synack, sequence=500, acknowledgment=101)
    yield ipv4_frame(hop, client, proxy, ACK, ack, sequence=101, acknowledgment=501)


def play(interface: str, proxy: End, rate: int, clients: int, per_client: int) -> None:
    """Send them all, at most `rate` frames per second."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
        sock.bind((interface, 0))
        began = time.monotonic()
        for sent, frame in enumerate(handshakes(proxy, clients, per_client)):
            if sent % _BATCH == 0 and (ahead := sent / rate - (time.monotonic() - began)) > 0:
                time.sleep(ahead)
            sock.send(frame)


if __name__ == "__main__":
    interface, address, port, *numbers = sys.argv[1:]
    play(interface, End(socket.inet_aton(address), int(port)), *map(int, numbers))
