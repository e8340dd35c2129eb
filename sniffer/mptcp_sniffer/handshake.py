"""MP_CAPABLE and MP_JOIN handshakes: which of them open a connection or add a subflow.

With `Trust.HANDSHAKE` a handshake is complete at its third ACK, with the right keys for MP_CAPABLE, the right HMAC for
MP_JOIN, and the right sequence numbers for both. With `Trust.TOKEN`, for hosts that see one direction only, it is
complete at the first segment that names the token.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from mptcp_sniffer.authentication import Keys, is_client_hmac, is_proxy_hmac, token_of
from mptcp_sniffer.options import MpCapable, MpJoinAck, MpJoinSyn, MpJoinSynAck, Option
from mptcp_sniffer.segment import PackedEndpoint, Segment
from mptcp_throttle.model import Token, Trust

_HALF_OPEN_SECONDS: Final = 75.0
"""Linux drops a half-open connection after 63 s (tcp_synack_retries 5: 1+2+4+8+16+32 s); with some margin."""


class Ends(NamedTuple):
    """A subflow's four-tuple, with addresses in network byte order."""

    client: PackedEndpoint
    proxy: PackedEndpoint


class Opened(NamedTuple):
    """A complete MP_CAPABLE handshake, SYN at `at`. `keys` is None if only the proxy's was seen (`Trust.TOKEN`)."""

    ends: Ends
    token: Token
    version: int
    keys: Keys | None
    sequence: int
    at: float


class Joined(NamedTuple):
    """An MP_JOIN handshake, SYN at `at`; complete if `authenticated`, else it waits for its third ACK."""

    ends: Ends
    token: Token
    address_id: int
    proxy_address_id: int
    backup: bool
    proxy_backup: bool
    sequence: int
    at: float
    authenticated: bool


@dataclass(slots=True)
class _HalfOpen:
    """A SYN, and the SYN/ACK once there is one. `keys` are those of the connection to join, if known."""

    option: MpCapable | MpJoinSyn
    sequence: int
    at: float
    keys: Keys | None = None
    answer: MpCapable | MpJoinSynAck | None = None
    answer_sequence: int = 0


class UnknownToken(LookupError):
    """No connection has this token."""


class Handshakes:
    """The incomplete handshakes: at most `bound`, beyond which the oldest is forgotten.

    `keys_of` returns the keys of the connection with a token, or None if only the connection is known, and raises
    UnknownToken. `counters` count the handshakes that failed, by reason.
    """

    def __init__(
        self, bound: int, trust: Trust, keys_of: Callable[[Token], Keys | None], counters: Counter[str]
    ) -> None:
        self._bound = bound
        self._trust = trust
        self._keys_of = keys_of
        self._counters = counters
        self._half_open: OrderedDict[Ends, _HalfOpen] = OrderedDict()

    def __len__(self) -> int:
        return len(self._half_open)

    def __contains__(self, ends: Ends) -> bool:
        return ends in self._half_open

    def on_syn(self, ends: Ends, segment: Segment, options: Sequence[Option], at: float) -> None:
        """A client's SYN."""
        option = _only_handshake(options)
        if not isinstance(option, MpCapable | MpJoinSyn):
            self._counters["plain_tcp"] += 1
            return
        keys = None
        if isinstance(option, MpJoinSyn):
            try:
                keys = self._keys_of(Token(option.token))
            except UnknownToken:
                self._counters["unknown_token"] += 1
                return
        earlier = self._half_open.get(ends)
        if earlier is not None and earlier.sequence == segment.sequence:
            self._counters["syn_retransmitted"] += 1
            return
        self._half_open[ends] = _HalfOpen(option, segment.sequence, at, keys)
        self._half_open.move_to_end(ends)
        self.expire(at)

    def on_syn_ack(self, ends: Ends, segment: Segment, options: Sequence[Option]) -> Opened | Joined | None:
        """The proxy's SYN/ACK. Returns a complete handshake, or a JOIN that waits for its third ACK."""
        half_open = self._half_open.get(ends)
        if half_open is None or half_open.sequence != _before(segment.acknowledgment):
            return None
        answer = _only_handshake(options)
        half_open.answer_sequence = segment.sequence
        match half_open.option, answer:
            case MpCapable(), MpCapable(sender_key=bytes(key)):
                half_open.answer = answer
                if self._trust is Trust.TOKEN:
                    token = token_of(answer.version, key)
                    return Opened(ends, token, answer.version, None, half_open.sequence, half_open.at)
                return None
            case MpJoinSyn() as syn, MpJoinSynAck():
                if half_open.keys is not None and not is_proxy_hmac(half_open.keys, syn, answer):
                    self._counters["wrong_hmac"] += 1
                    return None
                half_open.answer = answer
                authenticated = self._trust is Trust.TOKEN
                if authenticated:
                    del self._half_open[ends]
                return _joined(ends, half_open, syn, authenticated=authenticated)
        del self._half_open[ends]
        self._counters["fell_back"] += 1
        return None

    def on_third_ack(
        self, ends: Ends, segment: Segment, options: Sequence[Option], at: float
    ) -> Opened | Joined | None:
        """A client's segment with MP_CAPABLE or MP_JOIN and without SYN: the third ACK, or the first data."""
        ack = _only_handshake(options)
        half_open = self._half_open.get(ends)
        if half_open is None:
            if self._trust is Trust.TOKEN and isinstance(ack, MpCapable):
                return self._opened_without_syn(ends, segment, ack, at)
            return None
        match half_open.option, ack:
            case MpCapable() as syn, MpCapable(sender_key=bytes(client), receiver_key=bytes(proxy)):
                keys = Keys(ack.version, client, proxy)
                if not self._is_valid_capable(half_open, segment, syn, keys):
                    self._counters["wrong_key"] += 1
                    return None
                del self._half_open[ends]
                token = token_of(keys.version, keys.proxy)
                return Opened(ends, token, keys.version, keys, half_open.sequence, half_open.at)
            case MpJoinSyn() as syn, MpJoinAck():
                return self._join_completed(ends, half_open, segment, syn, ack)
        return None

    def _opened_without_syn(self, ends: Ends, segment: Segment, ack: MpCapable, at: float) -> Opened | None:
        if ack.sender_key is None or ack.receiver_key is None:
            return None
        keys = Keys(ack.version, ack.sender_key, ack.receiver_key)
        token = token_of(keys.version, keys.proxy)
        return Opened(ends, token, keys.version, keys, _before(segment.sequence), at)

    def _is_valid_capable(self, half_open: _HalfOpen, segment: Segment, syn: MpCapable, keys: Keys) -> bool:
        answer = half_open.answer
        if answer is None:
            return self._trust is Trust.TOKEN
        return (
            isinstance(answer, MpCapable)
            and (answer.version, answer.sender_key) == (keys.version, keys.proxy)
            and syn.sender_key in (None, keys.client)
            and _follows(half_open, segment)
        )

    def _join_completed(
        self, ends: Ends, half_open: _HalfOpen, segment: Segment, syn: MpJoinSyn, ack: MpJoinAck
    ) -> Joined | None:
        answer = half_open.answer
        if answer is not None or self._trust is not Trust.TOKEN:
            if not isinstance(answer, MpJoinSynAck) or not _follows(half_open, segment):
                return None
            if half_open.keys is None:
                self._counters["join_left_to_kernel"] += 1
                return None
            if not is_client_hmac(half_open.keys, syn, answer, ack):
                self._counters["wrong_hmac"] += 1
                return None
        del self._half_open[ends]
        return _joined(ends, half_open, syn, authenticated=True)

    def accepted_by_kernel(self, ends: Ends) -> Joined | None:
        """What is known of a JOIN that is in the kernel list, None if its SYN was not seen.

        It is forgotten if its HMAC cannot be checked without the keys; otherwise its third ACK is still to come.
        """
        half_open = self._half_open.get(ends)
        if half_open is None or not isinstance(half_open.option, MpJoinSyn):
            return None
        if half_open.keys is None:
            del self._half_open[ends]
        return _joined(ends, half_open, half_open.option, authenticated=True)

    def on_reset(self, ends: Ends) -> None:
        """An RST of either side: the handshake has failed."""
        self._half_open.pop(ends, None)

    def expire(self, now: float) -> None:
        """Forget the oldest beyond the bound, and those that are too old at `now`."""
        while self._half_open:
            oldest = next(iter(self._half_open.values()))
            if len(self._half_open) <= self._bound and now - oldest.at <= _HALF_OPEN_SECONDS:
                return
            self._half_open.popitem(last=False)
            self._counters["half_open_forgotten"] += 1


def _only_handshake(options: Sequence[Option]) -> Option | None:
    """The handshake option of a segment; None if there are several, which Linux ignores too (net/mptcp/subflow.c)."""
    found = [option for option in options if isinstance(option, MpCapable | MpJoinSyn | MpJoinSynAck | MpJoinAck)]
    return found[0] if len(found) == 1 else None


def _joined(ends: Ends, half_open: _HalfOpen, syn: MpJoinSyn, *, authenticated: bool) -> Joined:
    answer = half_open.answer if isinstance(half_open.answer, MpJoinSynAck) else None
    return Joined(
        ends,
        Token(syn.token),
        syn.address_id,
        0 if answer is None else answer.address_id,
        syn.backup,
        answer is not None and answer.backup,
        half_open.sequence,
        half_open.at,
        authenticated,
    )


def _follows(half_open: _HalfOpen, segment: Segment) -> bool:
    """Whether a segment belongs to this handshake: an off-path attacker does not know both sequence numbers."""
    return (
        _before(segment.sequence) == half_open.sequence and _before(segment.acknowledgment) == half_open.answer_sequence
    )


def _before(sequence: int) -> int:
    return (sequence - 1) & 0xFFFF_FFFF
