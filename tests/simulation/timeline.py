"""Virtual time: what happens when, in an order that depends on nothing but the run."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from random import Random
from typing import Final

from worlds import ManualClock

BOOT: Final = 1000.0
"""The monotonic clock at the begin of a run, in seconds."""


def stream(seed: int, *names: object) -> Random:
    """Random numbers for one purpose: without another purpose, and in every process, they are the same."""
    return Random(f"{seed} {names}")  # noqa: S311


class VirtualClock(ManualClock):
    """The clocks of the host. `wrong` is by how many seconds the wall clock is ahead of the true time.

    `is_synchronised` is what the kernel says of the wall clock.
    """

    def __init__(self, began: float) -> None:
        super().__init__(BOOT, began - BOOT)
        self.wrong = 0.0
        self.is_synchronised = True

    def time(self) -> float:
        return self.now + self.epoch + self.wrong

    @property
    def true_time(self) -> float:
        """Seconds since the epoch, whatever the wall clock says."""
        return self.now + self.epoch

    def processor_time(self) -> float:
        # Full reconciles are then as rare as they may be.
        self.used += 0.05
        return self.used


class Timeline:
    """What will happen. Of what happens at one instant, the first is what was scheduled first."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._serial = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, event: Callable[[], None]) -> None:
        """Let it happen at a time in monotonic seconds, or now if that is over."""
        heapq.heappush(self._events, (max(when, self._clock.now), next(self._serial), event))

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Let it happen in so many seconds."""
        self.at(self._clock.now + seconds, event)

    @property
    def next_at(self) -> float:
        """When the next event is due, in monotonic seconds."""
        return self._events[0][0] if self._events else math.inf

    def take(self) -> Callable[[], None]:
        """The next event."""
        return heapq.heappop(self._events)[2]
