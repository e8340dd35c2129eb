"""A receiver that puts a stream together."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple


class Added(NamedTuple):
    """How many of the bytes that arrived are new, and whether they came in order: no earlier byte was missing."""

    new: int
    in_order: bool


class Reassembly:
    """What has arrived of a stream whose first byte is 0. `held` bytes of it wait for an earlier one."""

    def __init__(self) -> None:
        self.expected = 0
        self.held = 0
        self._ranges: list[tuple[int, int]] = []  # that wait; sorted, and none touches another

    def add(self, start: int, end: int) -> Added:
        """The bytes from `start` to before `end` have arrived."""
        in_order = start <= self.expected
        start = max(start, self.expected)
        if end <= start:
            return Added(0, in_order)
        first = bisect_left(self._ranges, start, key=lambda range_: range_[1])
        last, new, merged = first, end - start, (start, end)
        while last < len(self._ranges) and self._ranges[last][0] <= end:
            low, high = self._ranges[last]
            new -= max(0, min(high, end) - max(low, start))
            merged = min(merged[0], low), max(merged[1], high)
            last += 1
        self._ranges[first:last] = [merged]
        self.held += new
        if merged[0] == self.expected:
            self.expected = merged[1]
            self.held -= merged[1] - merged[0]
            del self._ranges[first]
        return Added(new, in_order)
