"""What an overflow must make of caps, computed apart from the daemon's rules: from what sockets really carry.

While what a client asks for, and what its preferred paths lack, are the same for some seconds, its cap is known, with
the tolerance of the rule. Else it is within bounds: never less than without an overflow, never more than that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_throttle.model import RateKind
from mptcp_throttled.vocabulary.terms import ClientKey, RuleName

if TYPE_CHECKING:
    from modelled_proxy import ModelSocket
    from timeline import VirtualClock

    from mptcp_throttle.units import Rate

RAISED_SECONDS: Final = 3.0
"""From the observation that shows what paths lack to the cap: the averages are over 0.6 s."""

FALLEN_SECONDS: Final = 5.0
"""From the last observation in which a client asks for more to its usual cap: 2 s, then 1 s, and observations."""

_LATEST_SECONDS: Final = 2.0
_ASKS, _ASKS_NOT = 0.85, 0.7
"""Of the cap: what a client that asks for more carries at least, and what one that does not carries at most."""

_SAME: Final = 0.02
_TOLERATED: Final = 0.13
"""Of the overflow: differences that change nothing, and that a cap may be away from what paths lack."""


class Expected(NamedTuple):
    """A rate in bits per second, None being unlimited, and the rule that has decided it; None: one of several.

    `up_to`: any rate between both is right.
    """

    rate: int | None
    rule: RuleName | None = RuleName.CONFIGURED
    up_to: int | None = None

    def has(self, rate: int) -> bool:
        """Whether a rate is right."""
        return self.rate is not None and self.rate <= rate <= (self.up_to or self.rate)

    def bounded(self, by: Expected) -> Expected:
        """Not more than another rate."""
        if by.rate is None or (self.rate is not None and (self.up_to or self.rate) <= by.rate):
            return self
        if self.rate is None or by.rate < self.rate:
            return by
        return Expected(self.rate, None if by.rate > self.rate else self.rule, by.rate)


NO_RATE: Final = Expected(None)


class CappedPaths(NamedTuple):
    """The capped sockets of a client, by cookie, and the preferred ones of their connections.

    `overflow` is its network's, `cap` what it raises, both in bits per second.
    """

    overflow: int
    cap: int
    capped: dict[int, ModelSocket]
    preferred: dict[int, ModelSocket]


@dataclass
class _Shortfall:
    """What observations show of a client since `since`; `asks` is None if that is not clear.

    `lacks` are the bits per second that its preferred paths do not carry of the overflow.
    """

    asks: bool | None
    lacks: float
    cap: int
    since: float
    at: float

    def goes_on(self, other: _Shortfall, overflow: int) -> bool:
        """Whether another observation shows the same."""
        if self.asks is None or (self.asks, self.cap) != (other.asks, other.cap):
            return False
        same = not self.asks or abs(self.lacks - other.lacks) <= _SAME * overflow
        return same and other.at - self.at <= _LATEST_SECONDS


class ExpectedOverflow:
    """Follows all clients with capped subflows; times are in monotonic seconds."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._known: dict[ClientKey, _Shortfall] = {}
        self._sent: dict[int, int] = {}
        self._looked_at = -math.inf

    def look(self, clients: Mapping[ClientKey, CappedPaths]) -> None:
        """Take what sockets have carried since the last look."""
        now = self._clock.now
        seconds, self._looked_at = now - self._looked_at, now
        before, self._sent = self._sent, {}
        known, self._known = self._known, {}
        for key, paths in clients.items():
            carried, delivered = (
                8 * sum(self._added(socket, before) for socket in sockets.values()) / max(seconds, 1e-3)
                for sockets in (paths.capped, paths.preferred)
            )
            waits = any(socket.unsent for socket in paths.preferred.values())
            asks = waits if not waits or carried >= _ASKS * paths.cap else False if _rests(carried, paths) else None
            seen = _Shortfall(asks, paths.overflow - delivered, paths.cap, now, now)
            earlier = known.get(key)
            if earlier is not None and earlier.goes_on(seen, paths.overflow):
                seen.since, seen.lacks = earlier.since, earlier.lacks
            self._known[key] = seen

    def _added(self, socket: ModelSocket, before: Mapping[int, int]) -> int:
        self._sent[socket.cookie] = socket.sent
        return socket.sent - before.get(socket.cookie, socket.sent)

    def raised(self, client: ClientKey, overflow: Rate, terms: Mapping[RateKind, Expected]) -> Expected:
        """The cap of a client, which is one of the terms before."""
        cap, most = terms[RateKind.CAP], overflow.bits_per_second
        limit = terms.get(RateKind.LIMIT, NO_RATE).rate
        most = most if limit is None else min(most, limit)
        if cap.rate is None or most <= cap.rate:
            return cap
        unclear, known, now = Expected(cap.rate, None, most), self._known.get(client), self._clock.now
        if known is None or known.asks is None or now - known.at > _LATEST_SECONDS:
            return unclear
        if now - known.since < (RAISED_SECONDS if known.asks else FALLEN_SECONDS):
            return unclear
        tolerated = round(_TOLERATED * overflow.bits_per_second)
        lacks = round(known.lacks)
        if not known.asks or lacks < known.cap - tolerated:
            return cap
        low, high = min(lacks - tolerated, most), min(lacks + tolerated, most)
        if low <= max(cap.rate, known.cap):
            return Expected(cap.rate, None, max(high, cap.rate))
        return Expected(low, RuleName.OVERFLOW, high)


def _rests(carried: float, paths: CappedPaths) -> bool:
    return carried < _ASKS_NOT * paths.cap
