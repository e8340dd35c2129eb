"""What a burst lets through: HTB's tokens in the modelled kernel, and how much a share may carry at most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from violation import Violation

if TYPE_CHECKING:
    from world import World

    from mptcp_throttle.model import FourTuple
    from mptcp_throttle.units import Rate
    from mptcp_throttled.vocabulary.decision import Throttle

_PACKET_BYTES: Final = 64 << 10
"""One packet as the kernel makes it may be beyond a burst (docs/howto/networks.md)."""


class TokenBuckets:
    """The time that classes have not used, in seconds, by minor (net/sched/sch_htb.c, htb_accnt_tokens).

    A new class has all of its burst. A change of the rate leaves the time as it is, so that it is worth other bytes.
    """

    def __init__(self) -> None:
        self._left: dict[int, float] = {}

    def take(self, classes: Mapping[int, Rate | None], wanted: Mapping[int, float], seconds: float) -> dict[int, float]:
        """Which part of the `wanted` bytes each class with a burst lets through in the last `seconds`."""
        parts: dict[int, float] = {}
        before, self._left = self._left, {}
        for minor, rate in classes.items():
            if rate is None or not rate.burst:
                # One that drains keeps its time.
                if minor in before:
                    self._left[minor] = before[minor] + seconds
                continue
            most = rate.burst / rate.bytes_per_second
            left, asked = min(before.get(minor, most), most) + seconds, wanted.get(minor, 0.0)
            part = parts[minor] = min(1.0, left * rate.bytes_per_second / asked) if asked else 1.0
            self._left[minor] = min(left - part * asked / rate.bytes_per_second, most)
        return parts


class _Left(NamedTuple):
    """How many bytes beyond its rate a share may still carry, as it was `at` a time in monotonic seconds."""

    throttle: Throttle
    bytes: float
    at: float


class BurstBounds:
    """In any T seconds a share carries at most its rate times T, and its burst once. Raises Violation.

    A rate that rises, or a client that gets or loses terms of its own, may bring a burst more.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._left: dict[tuple[str, str, str], _Left] = {}

    def forget(self) -> None:
        """Another instance of the daemon begins with whole bursts."""
        self._left.clear()

    def take(self, flowed: Mapping[FourTuple, int], seconds: float) -> None:
        """Sockets have sent so many bytes through classes with a burst in the last `seconds`."""
        world = self._world
        if world.daemon is None or world.clock.now <= world.excused_until:
            self._left.clear()
            return
        said, applied = world.daemon.snapshot.throttled, world.proxy.kernel.throttled
        carried: dict[Throttle, int] = {}
        for ends, added in flowed.items():
            throttled = said.get(ends)
            if throttled is not None and throttled.throttle.rate == applied.get(ends):
                carried[throttled.throttle] = carried.get(throttled.throttle, 0) + added
        for throttle, added in carried.items():
            self._charge(throttle, added, seconds)

    def _charge(self, throttle: Throttle, added: int, seconds: float) -> None:
        share, rate, began = throttle.share, throttle.rate, self._world.clock.now - seconds
        key = share.network, str(share.kind), share.who
        left, before = float(rate.burst), self._left.get(key)
        if before is not None and before.throttle.share == share and _is_no_rise(before.throttle.rate, rate):
            left = min(before.bytes + before.throttle.rate.bytes_per_second * (began - before.at), left)
        left = min(left + rate.bytes_per_second * seconds - added, rate.burst)
        self._left[key] = _Left(throttle, left, began + seconds)
        if left < -_PACKET_BYTES:
            raise Violation(f"I8: {share.who} has carried {-left:.0f} bytes more than {rate} and its burst allow")


def _is_no_rise(before: Rate, after: Rate) -> bool:
    return after.burst == before.burst and after.bits_per_second <= before.bits_per_second
