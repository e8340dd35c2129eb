"""The table: which connection does each subflow belong to, and is it alive?

Connections are known by token. A JOIN belongs to the connection whose token it names, never to "the last client".
A subflow is live once the proxy's SYN/ACK has confirmed it with the MPTCP option, and until a FIN or RST.
The tracker is deterministic: segments with time stamps in, changed connections out, no clock and no I/O.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_sniffer.options import Handshake, MpCapable, MpJoinSyn, MpJoinSynAck, decode_handshake
from mptcp_sniffer.segment import Flag, Malformed, PackedEndpoint, Segment
from mptcp_throttle.model import Connection, Endpoint, FourTuple, Subflow, Token

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_HALF_OPEN_SECONDS: Final = 75.0
"""Linux gives up on a SYN/ACK after about 63 s (tcp_synack_retries 5: 1+2+4+8+16+32 s); some margin on top."""

_HASHES: Final = {0: hashlib.sha1, 1: hashlib.sha256}
"""Key to token: SHA-1 in version 0 (RFC 6824, section 3.1), SHA-256 in version 1 (RFC 8684, section 3.1)."""


class TableChange(NamedTuple):
    """A connection as it is now; None when its last subflow has gone."""

    token: Token
    connection: Connection | None


class _Ends(NamedTuple):
    client: PackedEndpoint
    proxy: PackedEndpoint


class _HalfOpen(NamedTuple):
    """A SYN that waits for its SYN/ACK."""

    option: MpCapable | MpJoinSyn
    sequence: int
    at: float


class _Live(NamedTuple):
    """A live subflow, and the initial sequence number that tells its incarnation from the next on the same ports."""

    subflow: Subflow
    sequence: int


@dataclass(slots=True)
class _Entry:
    version: int
    subflows: dict[_Ends, _Live] = field(default_factory=dict)


def token_of(version: int, key: bytes) -> Token:
    """The token of the connection whose proxy has this key: the most significant 32 bits of its hash."""
    return Token(int.from_bytes(_HASHES[version](key).digest()[:4]))


class Tracker:
    """Follows the subflows of all connections to the proxy's `ports`.

    At most `max_connections` connections and `max_half_open` unanswered SYNs are kept: beyond, a new connection is
    not tracked (and so never capped), and the oldest unanswered SYN is forgotten. `counters` tell what happened.
    """

    def __init__(self, ports: Collection[int], max_connections: int, max_half_open: int) -> None:
        self._ports = frozenset(ports)
        self._max_connections = max_connections
        self._max_half_open = max_half_open
        self._half_open: OrderedDict[_Ends, _HalfOpen] = OrderedDict()
        self._connections: dict[Token, _Entry] = {}
        self._tokens: dict[_Ends, Token] = {}
        self.counters: Counter[str] = Counter()

    def sizes(self) -> dict[str, int]:
        """Entries in each table."""
        return {
            "connections": len(self._connections),
            "subflows": len(self._tokens),
            "half_open": len(self._half_open),
        }

    def observe(self, segment: Segment, at: float) -> list[TableChange]:
        """Take one segment, captured at `at` seconds since the epoch; return the connections it changed.

        Malformed options are counted under `malformed` and their segment is ignored.
        """
        try:
            tokens = self._observe(segment, at)
        except Malformed:
            self.counters["malformed"] += 1
            return []
        return [self._change(token) for token in dict.fromkeys(tokens)]

    def _observe(self, segment: Segment, at: float) -> Iterable[Token]:
        flags = segment.flags
        if flags & (Flag.FIN | Flag.RST):
            return self._closed(segment, reset=bool(flags & Flag.RST))
        if not flags & Flag.SYN:
            return ()
        if not flags & Flag.ACK:
            if segment.destination.port in self._ports:
                self._asked(segment, at)
            return ()
        if segment.source.port in self._ports:
            return self._confirmed(segment)
        return ()

    def _asked(self, segment: Segment, at: float) -> None:
        option = decode_handshake(segment.options, ack=False)
        if option is None or isinstance(option, MpJoinSynAck):
            self.counters["plain_tcp"] += 1
            return
        if isinstance(option, MpJoinSyn) and option.token not in self._connections:
            self.counters["unknown_token"] += 1
            return
        ends = _Ends(segment.source, segment.destination)
        earlier = self._half_open.get(ends)
        if earlier is not None and earlier.sequence == segment.sequence:
            self.counters["syn_retransmitted"] += 1
            return
        self._half_open[ends] = _HalfOpen(option, segment.sequence, at)
        self._half_open.move_to_end(ends)
        self._forget_half_open(at)

    def _forget_half_open(self, now: float) -> None:
        while self._half_open:
            oldest = next(iter(self._half_open.values()))
            if len(self._half_open) <= self._max_half_open and now - oldest.at <= _HALF_OPEN_SECONDS:
                return
            self._half_open.popitem(last=False)
            self.counters["half_open_forgotten"] += 1

    def _confirmed(self, segment: Segment) -> Iterable[Token]:
        ends = _Ends(segment.destination, segment.source)
        sequence = (segment.acknowledgment - 1) & 0xFFFF_FFFF
        token = self._tokens.get(ends)
        if token is not None:
            if self._connections[token].subflows[ends].sequence == sequence:
                return
            # The kernel answers a SYN on these ports anew: it has closed the subflow that we still hold.
            self.counters["port_reused"] += 1
            yield self._drop(ends)
        asked = self._half_open.get(ends)
        if asked is None or asked.sequence != sequence:
            return
        del self._half_open[ends]
        token = self._accept(asked, decode_handshake(segment.options, ack=True), ends)
        if token is not None:
            yield token

    def _accept(self, asked: _HalfOpen, answer: Handshake | None, ends: _Ends) -> Token | None:
        if isinstance(asked.option, MpCapable) and isinstance(answer, MpCapable) and answer.key is not None:
            token = token_of(answer.version, answer.key)
            for stale in tuple(self._connections[token].subflows) if token in self._connections else ():
                # The kernel gives a token out again only after its connection has ended.
                self._drop(stale)
            if len(self._connections) >= self._max_connections:
                self.counters["connections_not_tracked"] += 1
                return None
            self._connections[token] = _Entry(answer.version)
            self._add(token, ends, asked, address_id=0, backup=False)
            return token
        if isinstance(asked.option, MpJoinSyn) and isinstance(answer, MpJoinSynAck):
            token = Token(asked.option.token)
            if token not in self._connections:
                self.counters["unknown_token"] += 1
                return None
            self._add(token, ends, asked, asked.option.address_id, asked.option.backup)
            return token
        self.counters["fell_back"] += 1
        return None

    def _add(self, token: Token, ends: _Ends, asked: _HalfOpen, address_id: int, backup: bool) -> None:
        subflow = Subflow(FourTuple(_unpack(ends.client), _unpack(ends.proxy)), address_id, backup, asked.at)
        self._connections[token].subflows[ends] = _Live(subflow, asked.sequence)
        self._tokens[ends] = token
        self.counters["subflows_opened"] += 1

    def _closed(self, segment: Segment, *, reset: bool) -> Iterable[Token]:
        for ends in (_Ends(segment.source, segment.destination), _Ends(segment.destination, segment.source)):
            if reset:
                self._half_open.pop(ends, None)
            if ends in self._tokens:
                yield self._drop(ends)

    def _drop(self, ends: _Ends) -> Token:
        token = self._tokens.pop(ends)
        entry = self._connections[token]
        del entry.subflows[ends]
        if not entry.subflows:
            del self._connections[token]
        self.counters["subflows_closed"] += 1
        return token

    def _change(self, token: Token) -> TableChange:
        entry = self._connections.get(token)
        if entry is None:
            return TableChange(token, None)
        subflows = tuple(live.subflow for live in entry.subflows.values())
        return TableChange(token, Connection(token, entry.version, subflows))


def _unpack(endpoint: PackedEndpoint) -> Endpoint:
    return Endpoint(ip_address(endpoint.address), endpoint.port)
