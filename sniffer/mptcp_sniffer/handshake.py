"""MP_CAPABLE and MP_JOIN handshakes: which of them open a connection or add a subflow.

With `Trust.HANDSHAKE` a handshake is complete at its third ACK, with the right keys for MP_CAPABLE, the right HMAC for
MP_JOIN, and the right sequence numbers for both. With `Trust.TOKEN`, for hosts that see one direction only, it is
complete at the first segment that names the token.

The segments of a handshake may come in any order: captures of several queues or interfaces do not keep it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from mptcp_sniffer.options import MpCapable, MpJoinAck, MpJoinSyn, MpJoinSynAck, Option
from mptcp_sniffer.segment import PackedEndpoint, Segment
from mptcp_throttle.model import Token, Trust

_HALF_OPEN_SECONDS: Final = 75.0
"""Linux drops a half-open connection after 63 s (tcp_synack_retries 5: 1+2+4+8+16+32 s); with some margin."""

_HASHES: Final = {0: "sha1", 1: "sha256"}
"""By MPTCP version: of the token and of the HMACs (RFC 8684 and RFC 6824, sections 3.1 and 3.2)."""

_Ack = TypeVar("_Ack", MpJoinSynAck, MpJoinAck)


class Keys(NamedTuple):
    """The keys that client and proxy exchanged when they opened a connection."""

    version: int
    client: bytes
    proxy: bytes


class Ends(NamedTuple):
    """A subflow's four-tuple, with addresses in network byte order."""

    client: PackedEndpoint
    proxy: PackedEndpoint


class Start(NamedTuple):
    """Where one side begins: its initial sequence number, and how many bytes of data came with it (TCP Fast Open)."""

    sequence: int
    payload: int

    def is_followed_by(self, number: int) -> bool:
        """Whether this sequence number comes next: after the SYN alone, or after its data.

        The other side accepts all of the data or none (RFC 7413, section 4.2.2).
        """
        return (number - self.sequence - 1) & 0xFFFF_FFFF in (0, self.payload)


class Opened(NamedTuple):
    """A complete MP_CAPABLE handshake, SYN at `at`. `keys` is None if only the proxy's was seen (`Trust.TOKEN`)."""

    ends: Ends
    token: Token
    version: int
    keys: Keys | None
    start: Start
    at: float


class Joined(NamedTuple):
    """An MP_JOIN handshake, SYN at `at`; complete if `authenticated`, else it waits for its third ACK."""

    ends: Ends
    token: Token
    address_id: int
    proxy_address_id: int
    backup: bool
    proxy_backup: bool
    start: Start
    at: float
    authenticated: bool


class _Syn(NamedTuple):
    option: MpCapable | MpJoinSyn
    start: Start
    at: float


class _Answer(NamedTuple, Generic[_Ack]):
    option: MpCapable | _Ack
    start: Start
    acknowledgment: int


@dataclass(slots=True)
class _HalfOpen:
    """The segments of a handshake that were seen, the first of them at `at`.

    `waiting` is the JOIN as it was returned, to wait for its third ACK; None: it was not.
    """

    at: float
    syn: _Syn | None = None
    syn_ack: _Answer[MpJoinSynAck] | None = None
    third_ack: _Answer[MpJoinAck] | None = None
    waiting: Joined | None = None

    def options(self) -> tuple[MpCapable | MpJoinSynAck | None, MpCapable | MpJoinAck | None]:
        """The handshake options of the SYN/ACK and of the third ACK; None where that was not seen."""
        return self.syn_ack and self.syn_ack.option, self.third_ack and self.third_ack.option


class UnknownToken(LookupError):
    """No connection has this token."""


class Handshakes:
    """The incomplete handshakes: at most `bound`, beyond which the oldest is forgotten.

    `keys_of` returns the keys of the connection with a token, None if its keys are not known, and raises UnknownToken.
    `start_of` returns the client's start of the live subflow on these ports, None if there is none or it is not known.
    `on_failed` is called when a JOIN that was returned to wait for its third ACK has failed: with the JOIN, the time
    and the reason. `counters` count the handshakes that failed, by reason.
    """

    def __init__(
        self,
        bound: int,
        trust: Trust,
        counters: Counter[str],
        *,
        keys_of: Callable[[Token], Keys | None],
        start_of: Callable[[Ends], Start | None],
        on_failed: Callable[[Joined, float, str], None],
    ) -> None:
        self._bound = bound
        self._trust = trust
        self._counters = counters
        self._keys_of = keys_of
        self._start_of = start_of
        self._on_failed = on_failed
        self._half_open: OrderedDict[Ends, _HalfOpen] = OrderedDict()

    def __len__(self) -> int:
        return len(self._half_open)

    def __contains__(self, ends: Ends) -> bool:
        return ends in self._half_open

    def on_syn(self, ends: Ends, segment: Segment, options: Sequence[Option], at: float) -> Opened | Joined | None:
        """A client's SYN. Returns a complete handshake, or a JOIN that waits for its third ACK."""
        option = _only_handshake(options)
        if not isinstance(option, MpCapable | MpJoinSyn):
            self._counters["plain_tcp"] += 1
            return None
        earlier, start = self._syn_of(ends), _start(segment)
        known = None if earlier is None else earlier.start, self._start_of(ends)
        # With `Trust.TOKEN` a live subflow may be known by its third ACK, which came after the data.
        if any(each is not None and start.is_followed_by(each.sequence + 1) for each in known):
            self._counters["syn_retransmitted"] += 1
            return None
        if isinstance(option, MpJoinSyn):
            try:
                self._keys_of(Token(option.token))
            except UnknownToken:
                self._counters["unknown_token"] += 1
        if earlier:
            self.forget(ends, at, "ports reused")
        half_open = self._begun(ends, at)
        half_open.syn = _Syn(option, start, at)
        if half_open.syn_ack is not None and not start.is_followed_by(half_open.syn_ack.acknowledgment):
            half_open.syn_ack = None
        return self._proceed(ends, half_open, at)

    def on_syn_ack(self, ends: Ends, segment: Segment, options: Sequence[Option], at: float) -> Opened | Joined | None:
        """The proxy's SYN/ACK. Returns as `on_syn`."""
        option = _only_handshake(options)
        syn, answered = self._syn_of(ends), segment.acknowledgment
        if self._is_live(ends, answered) if syn is None else not syn.start.is_followed_by(answered):
            return None
        if isinstance(option, MpCapable | MpJoinSynAck):
            half_open = self._begun(ends, at)
            half_open.syn_ack = _Answer(option, _start(segment), answered)
            return self._proceed(ends, half_open, at)
        if syn is not None:
            self._fall_back(ends, at)
        return None

    def on_third_ack(
        self, ends: Ends, segment: Segment, options: Sequence[Option], at: float
    ) -> Opened | Joined | None:
        """A client's segment without SYN: the third ACK, or first data with the same option. Returns as `on_syn`."""
        option = _only_handshake(options)
        if not isinstance(option, MpCapable | MpJoinAck):
            return None
        if self._syn_of(ends) is None:
            if self._trust is Trust.TOKEN and isinstance(option, MpCapable):
                self._half_open.pop(ends, None)
                return self._opened_without_syn(ends, segment, option, at)
            if self._is_live(ends, segment.sequence):
                return None
        half_open = self._begun(ends, at)
        half_open.third_ack = _Answer(option, _start(segment), segment.acknowledgment)
        return self._proceed(ends, half_open, at)

    def _opened_without_syn(self, ends: Ends, segment: Segment, ack: MpCapable, at: float) -> Opened | None:
        if ack.sender_key is None or ack.receiver_key is None:
            return None
        keys = Keys(ack.version, ack.sender_key, ack.receiver_key)
        token = token_of(keys.version, keys.proxy)
        return Opened(ends, token, keys.version, keys, Start(_before(segment.sequence), 0), at)

    def _is_live(self, ends: Ends, number: int) -> bool:
        """Whether the live subflow on these ports goes on with this sequence number after its SYN."""
        start = self._start_of(ends)
        return start is not None and start.is_followed_by(number)

    def _syn_of(self, ends: Ends) -> _Syn | None:
        half_open = self._half_open.get(ends)
        return None if half_open is None else half_open.syn

    def _begun(self, ends: Ends, at: float) -> _HalfOpen:
        half_open = self._half_open.get(ends)
        if half_open is None:
            half_open = self._half_open[ends] = _HalfOpen(at)
            self.expire(at)
        return half_open

    def _proceed(self, ends: Ends, half_open: _HalfOpen, at: float) -> Opened | Joined | None:
        """The handshake, if the segments that were seen complete it. A third ACK that proves nothing is dropped."""
        syn, syn_ack = half_open.syn, half_open.syn_ack
        if syn is None:
            return None
        if syn_ack is not None and isinstance(syn_ack.option, MpCapable) != isinstance(syn.option, MpCapable):
            self._fall_back(ends, at)
            return None
        if isinstance(syn.option, MpCapable):
            return self._proceed_to_open(ends, half_open, syn, syn.option)
        return self._proceed_to_join(ends, half_open, syn, syn.option, at)

    def _proceed_to_open(self, ends: Ends, half_open: _HalfOpen, syn: _Syn, offer: MpCapable) -> Opened | None:
        answer, ack = half_open.options()
        is_token_enough = self._trust is Trust.TOKEN
        match answer, ack:
            case None, MpCapable() if not is_token_enough:
                return None
            case _, MpCapable(version, bytes(client), bytes(proxy)):
                keys = Keys(version, client, proxy)
                if isinstance(answer, MpCapable) and not (_is_proved(offer, answer, keys) and _follows(half_open)):
                    half_open.third_ack = None
                    self._counters["wrong_key"] += 1
                    return None
                del self._half_open[ends]
                return Opened(ends, token_of(version, proxy), version, keys, syn.start, syn.at)
            case MpCapable(version, bytes(proxy)), _ if is_token_enough:
                return Opened(ends, token_of(version, proxy), version, None, syn.start, syn.at)
        return None

    def _proceed_to_join(
        self, ends: Ends, half_open: _HalfOpen, syn: _Syn, request: MpJoinSyn, at: float
    ) -> Joined | None:
        try:
            keys = self._keys_of(Token(request.token))
        except UnknownToken:
            if half_open.third_ack is not None:
                self.forget(ends, at, "unknown token")
            return None
        answer, ack = half_open.options()
        if isinstance(answer, MpJoinSynAck) and keys is not None and not _is_proxy_hmac(keys, request, answer):
            half_open.syn_ack = answer = None
            self._counters["wrong_hmac"] += 1
        if self._trust is Trust.TOKEN:
            is_complete = answer is not None or isinstance(ack, MpJoinAck)
        else:
            is_complete = self._is_join_proved(half_open, request, keys)
        if is_complete:
            del self._half_open[ends]
            return _joined(ends, syn, request, answer, authenticated=True)
        if answer is None or half_open.waiting is not None:
            return None
        half_open.waiting = _joined(ends, syn, request, answer, authenticated=False)
        return half_open.waiting

    def _is_join_proved(self, half_open: _HalfOpen, request: MpJoinSyn, keys: Keys | None) -> bool:
        answer, ack = half_open.options()
        if not isinstance(answer, MpJoinSynAck) or not isinstance(ack, MpJoinAck):
            return False
        if keys is None:
            self._counters["join_left_to_kernel"] += 1
        elif _follows(half_open):
            if _is_client_hmac(keys, request, answer, ack):
                return True
            self._counters["wrong_hmac"] += 1
        half_open.third_ack = None
        return False

    def accepted_by_kernel(self, ends: Ends, token: Token) -> Joined | None:
        """A JOIN that the kernel list has with this token, as it was seen; None if its SYN was not seen.

        If the keys of the connection are not known, its third ACK proves nothing, and the handshake is forgotten.
        """
        half_open = self._half_open.get(ends)
        if half_open is None or half_open.syn is None or not isinstance(half_open.syn.option, MpJoinSyn):
            return None
        request = half_open.syn.option
        if request.token != token:
            return None
        if self._keys_of(token) is None:
            del self._half_open[ends]
        answer = half_open.syn_ack and half_open.syn_ack.option
        return _joined(ends, half_open.syn, request, answer, authenticated=True)

    def expire(self, now: float) -> None:
        """Forget the oldest handshakes beyond the bound, and all that are too old at `now`."""
        while self._half_open:
            ends, oldest = next(iter(self._half_open.items()))
            if len(self._half_open) <= self._bound and now - oldest.at <= _HALF_OPEN_SECONDS:
                return
            self._counters["half_open_forgotten"] += 1
            self.forget(ends, now, "not completed")

    def _fall_back(self, ends: Ends, at: float) -> None:
        self._counters["fell_back"] += 1
        self.forget(ends, at, "fell back to TCP")

    def forget(self, ends: Ends, at: float, detail: str) -> None:
        """Forget the handshake on these ports, if there is one: it has failed, and `detail` says why."""
        half_open = self._half_open.pop(ends, None)
        if half_open is not None and half_open.waiting is not None:
            self._on_failed(half_open.waiting, at, detail)


def _only_handshake(options: Sequence[Option]) -> Option | None:
    """The handshake option of a segment; None if there are several, which Linux ignores too (net/mptcp/subflow.c)."""
    handshakes = [option for option in options if isinstance(option, MpCapable | MpJoinSyn | MpJoinSynAck | MpJoinAck)]
    return handshakes[0] if len(handshakes) == 1 else None


def _joined(
    ends: Ends, syn: _Syn, request: MpJoinSyn, answer: MpCapable | MpJoinSynAck | None, *, authenticated: bool
) -> Joined:
    proxy_id, proxy_backup = (answer.address_id, answer.backup) if isinstance(answer, MpJoinSynAck) else (0, False)
    flags = request.backup, proxy_backup
    token = Token(request.token)
    return Joined(ends, token, request.address_id, proxy_id, *flags, syn.start, syn.at, authenticated)


def _is_proved(offer: MpCapable, answer: MpCapable, keys: Keys) -> bool:
    """Whether the third ACK of an MP_CAPABLE handshake has the keys that both sides offered before."""
    return (answer.version, answer.sender_key) == (keys.version, keys.proxy) and offer.sender_key in (None, keys.client)


def _follows(half_open: _HalfOpen) -> bool:
    """Whether the third ACK belongs to this handshake: an off-path attacker does not know both sequence numbers.

    The SYN/ACK does: it was compared with the SYN.
    """
    answer, ack = half_open.syn_ack, half_open.third_ack
    return (
        answer is not None
        and ack is not None
        and ack.start.sequence == answer.acknowledgment
        and answer.start.is_followed_by(ack.acknowledgment)
    )


def _start(segment: Segment) -> Start:
    return Start(segment.sequence, segment.payload)


def _before(sequence: int) -> int:
    return (sequence - 1) & 0xFFFF_FFFF


def token_of(version: int, key: bytes) -> Token:
    """The token of the connection whose proxy has this key: the most significant 32 bits of its hash."""
    return Token(int.from_bytes(hashlib.new(_HASHES[version], key).digest()[:4]))


def _is_client_hmac(keys: Keys, syn: MpJoinSyn, synack: MpJoinSynAck, ack: MpJoinAck) -> bool:
    """Whether the third ACK of a JOIN comes from the client that opened the connection (HMAC-A)."""
    expected = _hmac(keys.version, keys.client + keys.proxy, syn.nonce + synack.nonce)
    return hmac.compare_digest(expected[: len(ack.hmac)], ack.hmac)


def _is_proxy_hmac(keys: Keys, syn: MpJoinSyn, synack: MpJoinSynAck) -> bool:
    """Whether the SYN/ACK of a JOIN comes from the proxy of the connection (HMAC-B, truncated)."""
    expected = _hmac(keys.version, keys.proxy + keys.client, synack.nonce + syn.nonce)
    return hmac.compare_digest(expected[: len(synack.hmac)], synack.hmac)


def _hmac(version: int, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, _HASHES[version])
