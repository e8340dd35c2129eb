"""Segments for tests of the sniffer, built with Scapy, independent of our parser."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from ipaddress import ip_address

from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether

from mptcp_sniffer.handshake import Ends
from mptcp_sniffer.segment import PackedEndpoint, Segment, parse_ethernet
from mptcp_throttle.model import Token

KEY = bytes.fromhex("0102030405060708")
CLIENT_KEY = b"clientke"
CLIENT_NONCE, PROXY_NONCE = b"ncli", b"npro"
PROXY = "10.3.0.2"
PROXY6 = "fd00:3::2"


def token(key: bytes = KEY, version: int = 1) -> Token:
    digest = (hashlib.sha256 if version else hashlib.sha1)(key).digest()
    return Token(int.from_bytes(digest[:4]))


def frame(
    source: str,
    sport: int,
    destination: str,
    dport: int,
    flags: str,
    *options: bytes,
    seq: int = 100,
    ack: int = 0,
    vlans: int = 0,
    payload: bytes = b"",
) -> bytes:
    """An Ethernet frame; `options` are the bodies of MPTCP options, after other options as in real stacks."""
    ip = IPv6(src=source, dst=destination) if ":" in source else IP(src=source, dst=destination)
    mptcp = [(30, body) for body in options]
    tcp_options = [("MSS", 1460), ("NOP", None), ("WScale", 7), *mptcp, ("SAckOK", b"")] if "S" in flags else mptcp
    packet = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    for _ in range(vlans):
        packet /= Dot1Q(vlan=5)
    tcp = TCP(sport=sport, dport=dport, flags=flags, seq=seq, ack=ack, options=tcp_options)
    return bytes(packet / ip / tcp / payload)


def segment(
    source: str,
    sport: int,
    destination: str,
    dport: int,
    flags: str,
    *options: bytes,
    seq: int = 100,
    ack: int = 0,
    payload: bytes = b"",
) -> Segment:
    captured = frame(source, sport, destination, dport, flags, *options, seq=seq, ack=ack, payload=payload)
    parsed = parse_ethernet(captured)
    assert parsed is not None
    return parsed


def capable_syn(version: int = 1) -> bytes:
    """MP_CAPABLE of a SYN: version 0 carries the client's key, version 1 does not."""
    return bytes([version, 0x81]) + (b"" if version else CLIENT_KEY)


def capable_synack(key: bytes = KEY, version: int = 1) -> bytes:
    return bytes([version, 0x81]) + key


def capable_ack(key: bytes = KEY, version: int = 1, client_key: bytes = CLIENT_KEY) -> bytes:
    return bytes([version, 0x81]) + client_key + key


def join_syn(of: Token, *, backup: bool = False, address_id: int = 2) -> bytes:
    return bytes([0x10 | backup, address_id]) + of.to_bytes(4) + CLIENT_NONCE


def join_synack(key: bytes = KEY, version: int = 1, *, backup: bool = False, address_id: int = 0) -> bytes:
    hmac = _hmac(version, key + CLIENT_KEY, PROXY_NONCE + CLIENT_NONCE)
    return bytes([0x10 | backup, address_id]) + hmac[:8] + PROXY_NONCE


def join_ack(key: bytes = KEY, version: int = 1, client_key: bytes = CLIENT_KEY) -> bytes:
    return bytes([0x10, 0]) + _hmac(version, client_key + key, CLIENT_NONCE + PROXY_NONCE)[:20]


def prio(*, backup: bool, address_id: int | None = None) -> bytes:
    return bytes([0x50 | backup]) + (b"" if address_id is None else bytes([address_id]))


def remove_addr(*address_ids: int) -> bytes:
    return bytes([0x40, *address_ids])


def fastclose(key: bytes) -> bytes:
    return bytes([0x70, 0]) + key


def tcprst(reason: int) -> bytes:
    return bytes([0x80, reason])


def fail() -> bytes:
    return bytes([0x60, 0]) + bytes(8)


def _hmac(version: int, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256" if version else "sha1")


@dataclass(frozen=True)
class Client:
    """The client of one subflow; each method makes one of its segments.

    `early` and `answer` are the data of the SYN and of the SYN/ACK, which the other side accepts (TCP Fast Open).
    """

    address: str
    port: int
    seq: int = 100
    early: bytes = b""
    answer: bytes = b""

    @property
    def ends(self) -> Ends:
        return Ends(
            PackedEndpoint(ip_address(self.address).packed, self.port),
            PackedEndpoint(ip_address(self._proxy).packed, 8080),
        )

    @property
    def _proxy(self) -> str:
        return PROXY6 if ":" in self.address else PROXY

    @property
    def _next(self) -> int:
        return self.seq + 1 + len(self.early)

    @property
    def _next_by_proxy(self) -> int:
        return 901 + len(self.answer)

    def _by_client(self, flags: str, *options: bytes, seq: int, ack: int = 0, payload: bytes = b"") -> Segment:
        ends = self.address, self.port, self._proxy, 8080
        return segment(*ends, flags, *options, seq=seq, ack=ack, payload=payload)

    def _by_proxy(self, flags: str, *options: bytes, seq: int, ack: int, payload: bytes = b"") -> Segment:
        ends = self._proxy, 8080, self.address, self.port
        return segment(*ends, flags, *options, seq=seq, ack=ack, payload=payload)

    def syn(self, *options: bytes) -> Segment:
        return self._by_client("S", *options, seq=self.seq, payload=self.early)

    def synack(self, *options: bytes) -> Segment:
        return self._by_proxy("SA", *options, seq=900, ack=self._next, payload=self.answer)

    def ack(self, *options: bytes, flags: str = "A") -> Segment:
        return self._by_client(flags, *options, seq=self._next, ack=self._next_by_proxy)

    def ack_by_proxy(self, *options: bytes, flags: str = "A") -> Segment:
        return self._by_proxy(flags, *options, seq=self._next_by_proxy, ack=self._next)

    def fin(self) -> Segment:
        return segment(self.address, self.port, self._proxy, 8080, "FA", seq=500)

    def fin_by_proxy(self) -> Segment:
        return segment(self._proxy, 8080, self.address, self.port, "FA", seq=950)

    def reset_by_proxy(self, *options: bytes) -> Segment:
        return segment(self._proxy, 8080, self.address, self.port, "R", *options, seq=901)
