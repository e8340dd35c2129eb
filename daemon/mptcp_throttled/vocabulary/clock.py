"""Clocks. Durations are measured by the monotonic clock, so that they stay right when the wall clock is set.

In memory, an end is in monotonic seconds. In JSON it is `{expires_at, seconds_left}`: in seconds since the epoch, and
in how many seconds; both are null if there is no end.
"""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from typing import Self

    from mptcp_throttle.rpc import Json

_TOLERATED_SECONDS: Final = 0.5


class Clock:
    """The clock of the system, in seconds; tests have another."""

    def time(self) -> float:
        """The seconds since the epoch, by the wall clock: it may jump."""
        return time.time()

    def monotonic(self) -> float:
        """The seconds since some point, never set; the same for all processes of this host."""
        return time.monotonic()

    def processor_time(self) -> float:
        """The processor time of this thread, and of the programs that this process has run to their end."""
        of_programs = os.times()
        return time.thread_time() + of_programs.children_user + of_programs.children_system


class EpochOffset:
    """By how many seconds the time since the epoch exceeds the monotonic one.

    It stays the same value while the wall clock is only slewed, so that readers can compare it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds = -math.inf

    @property
    def seconds(self) -> float:
        """The offset, at most `_TOLERATED_SECONDS` wrong."""
        present = self._clock.time() - self._clock.monotonic()
        if abs(present - self._seconds) > _TOLERATED_SECONDS:
            self._seconds = present
        return self._seconds


class Now(NamedTuple):
    """The present on both clocks."""

    monotonic: float
    epoch: float

    @classmethod
    def of(cls, clock: Clock) -> Self:
        """The present of a clock."""
        return cls(clock.monotonic(), clock.time())

    def in_epoch(self, monotonic: float) -> float:
        """A monotonic time as seconds since the epoch."""
        return self.epoch + monotonic - self.monotonic


def encode_end(end: float | None, now: Now) -> dict[str, Json]:
    """The JSON of an end; None: there is none."""
    if end is None:
        return {"expires_at": None, "seconds_left": None}
    return {"expires_at": now.in_epoch(end), "seconds_left": max(end - now.monotonic, 0.0)}


def decode_end(data: Json, now: Now) -> float | None:
    """The end, in monotonic seconds, that `encode_end` wrote.

    It is at most `seconds_left` from now, as the wall clock may have been set back since.

    Raises ValueError, KeyError or TypeError if `data` is no end.
    """
    if data["expires_at"] is None:
        return None
    left = float(data["expires_at"]) - now.epoch
    left = min(left, float(data.get("seconds_left", left)))
    if not math.isfinite(left):
        raise ValueError(f"expires_at {data['expires_at']}")
    return now.monotonic + left
