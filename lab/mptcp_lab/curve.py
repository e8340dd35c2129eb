"""A counter over time, and what it says of rates."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

MEGA: Final = 1e6


class Curve:
    """A counter over time; between its points it grows evenly."""

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        self.points = sorted(points)
        self._times = [at for at, _ in self.points]

    def at(self, time: float) -> float:
        """The value of the counter at a time."""
        after = bisect_right(self._times, time)
        if after == 0 or after == len(self.points):
            return self.points[max(after - 1, 0)][1] if self.points else 0.0
        (start, low), (end, high) = self.points[after - 1], self.points[after]
        return low + (high - low) * (time - start) / (end - start)

    def mbps(self, start: float, end: float) -> float:
        """A counter of bytes as a mean rate in Mb/s."""
        return (self.at(end) - self.at(start)) * 8 / (end - start) / MEGA if end > start else 0.0
