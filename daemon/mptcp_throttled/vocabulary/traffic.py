"""What subflows carry, as the kernel counts it for their sockets.

The kernel counts payload and segments, not bytes on the wire. What a carrier counts, IP bytes, is computed: each
segment has an IP header of 20 or 40 bytes, a TCP header of 20, time stamps of 12 (RFC 7323), and an MPTCP DSS option
(RFC 8684, section 3.3) of 28 bytes with data and 12 without, as Linux sends them: 64-bit numbers, padded. TCP without
MPTCP has no such option. The SYN/ACK is not among the segments that the kernel counts (net/ipv4/tcp_minisocks.c,
tcp_create_openreq_child), the SYN is. Payload that a client sends twice counts once, because the proxy's kernel does
not count it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from mptcp_throttle.model import FourTuple, Token

_IP_HEADER: Final = {4: 20, 6: 40}
_TCP_WITH_TIME_STAMPS: Final = 32
_DSS_WITH_DATA: Final = 28
_DSS_WITHOUT_DATA: Final = 12
# With MSS, SACK permitted, time stamps and window scale.
_TCP_WITH_SYN: Final = 40
# MP_CAPABLE has 4, 12 and 20 bytes in the SYN, the SYN/ACK and the ACK that follows, MP_JOIN 12, 16 and 24 (RFC 8684,
# figures 4 to 8): these are the averages. That ACK has no DSS.
_MPTCP_OF_SYN_ACK: Final = 14
_MPTCP_OF_SYN_AND_ACK: Final = 30
_NS_PER_MS: Final = 10**6


class SteeredTotals(NamedTuple):
    """What the steering programs have counted for a subflow since they were loaded.

    `own_acks` are the ACKs that they have made. For `held_back_ms` milliseconds, data of its connection waited for it
    while it was held back.
    """

    own_acks: int = 0
    held_back_ms: int = 0

    @classmethod
    def of(cls, own_acks: int, held_ns: int) -> Self:
        """From the counters of the programs; `held_ns` is in nanoseconds."""
        return cls(own_acks, held_ns // _NS_PER_MS)

    def since(self, before: SteeredTotals) -> SteeredTotals:
        """What was counted since `before`; if the programs were loaded again in between, all of it."""
        if self.own_acks < before.own_acks or self.held_back_ms < before.held_back_ms:
            return self
        return SteeredTotals(self.own_acks - before.own_acks, self.held_back_ms - before.held_back_ms)


class SocketTotals(NamedTuple):
    """What the kernel has counted for a socket (include/uapi/linux/tcp.h, struct tcp_info), as seen by the proxy.

    `sent` and `received` are bytes of payload; `sent` includes those `retransmitted`. `data_out` and `data_in` are the
    segments of `segments_out` and `segments_in` that carry data. The `own_acks` in `steered` are among `segments_in`,
    and did not come from the client.
    """

    sent: int = 0
    retransmitted: int = 0
    received: int = 0
    segments_out: int = 0
    segments_in: int = 0
    data_out: int = 0
    data_in: int = 0
    steered: SteeredTotals = SteeredTotals()

    def since(self, before: SocketTotals) -> SocketTotals:
        """What was added since `before`."""
        return SocketTotals(
            self.sent - before.sent,
            self.retransmitted - before.retransmitted,
            self.received - before.received,
            _segments_since(self.segments_out, before.segments_out),
            _segments_since(self.segments_in, before.segments_in),
            _segments_since(self.data_out, before.data_out),
            _segments_since(self.data_in, before.data_in),
            self.steered.since(before.steered),
        )


@dataclass(frozen=True, slots=True)
class ClosedSubflow:
    """A subflow at its end, or a TCP connection without MPTCP, which has no `token`.

    `cookie` identifies its socket as long as this kernel runs (SO_COOKIE).
    """

    token: Token | None
    ends: FourTuple
    cookie: int
    totals: SocketTotals


@dataclass(frozen=True, slots=True)
class Traffic:
    """Sums over subflows: bytes of payload, and IP bytes.

    `ip_sent_throttled` is the part of `ip_sent` that was under a cap or limit. `closed` is the number of subflows that
    have closed. `rtt_seconds` is the sum of `rtt_samples` smoothed RTTs. For `held_back_ms` milliseconds, summed over
    connections, data waited for a capped subflow that was held back.
    """

    sent: int = 0
    retransmitted: int = 0
    received: int = 0
    ip_sent: int = 0
    ip_sent_throttled: int = 0
    ip_received: int = 0
    closed: int = 0
    rtt_seconds: float = 0.0
    rtt_samples: int = 0
    held_back_ms: int = 0

    @classmethod
    def of(
        cls,
        added: SocketTotals,
        ip_version: int,
        *,
        throttled: bool,
        closed: bool,
        rtt: float | None,
        is_mptcp: bool = True,
        opened: bool = False,
    ) -> Self:
        """The traffic of one subflow from what its socket has `added`; `rtt` in seconds, None: not known.

        `opened`: its handshake counts, too.
        """
        ip_sent = added.sent + _headers(added.segments_out, added.data_out, ip_version, is_mptcp=is_mptcp)
        segments_in = added.segments_in - added.steered.own_acks
        ip_received = added.received + _headers(segments_in, added.data_in, ip_version, is_mptcp=is_mptcp)
        if opened:
            ip_sent += _IP_HEADER[ip_version] + _TCP_WITH_SYN + is_mptcp * _MPTCP_OF_SYN_ACK
            ip_received += _TCP_WITH_SYN - _TCP_WITH_TIME_STAMPS
            ip_received += is_mptcp * (_MPTCP_OF_SYN_AND_ACK - 2 * _DSS_WITHOUT_DATA)
        return cls(
            added.sent,
            added.retransmitted,
            added.received,
            ip_sent,
            ip_sent if throttled else 0,
            ip_received,
            int(closed),
            rtt or 0.0,
            0 if rtt is None else 1,
            added.steered.held_back_ms,
        )

    def plus(self, added: Traffic) -> Traffic:
        """The sum."""
        return Traffic(
            self.sent + added.sent,
            self.retransmitted + added.retransmitted,
            self.received + added.received,
            self.ip_sent + added.ip_sent,
            self.ip_sent_throttled + added.ip_sent_throttled,
            self.ip_received + added.ip_received,
            self.closed + added.closed,
            self.rtt_seconds + added.rtt_seconds,
            self.rtt_samples + added.rtt_samples,
            self.held_back_ms + added.held_back_ms,
        )


def _segments_since(after: int, before: int) -> int:
    """The difference of two numbers of segments, which are 32-bit numbers in the kernel and wrap around."""
    return (after - before) & 0xFFFF_FFFF


def _headers(segments: int, with_data: int, ip_version: int, *, is_mptcp: bool) -> int:
    each = _IP_HEADER[ip_version] + _TCP_WITH_TIME_STAMPS
    if not is_mptcp:
        return segments * each
    return segments * (each + _DSS_WITHOUT_DATA) + with_data * (_DSS_WITH_DATA - _DSS_WITHOUT_DATA)
