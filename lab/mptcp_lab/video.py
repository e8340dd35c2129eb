"""What a video needs of an expensive path beside Wi-Fi whose rate varies, if that is known beforehand.

What Wi-Fi carries changes every 2 to 5 s, at random between 1 and 12 Mb/s, uniform in its logarithm. Its mean of
4.4 Mb/s is less than the highest bitrate of the player needs (see `playback`).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from mptcp_lab.playback import LADDER, MOST_BUFFERED_SECONDS, SEGMENT_SECONDS, next_bitrate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mptcp_lab.playback import Played

PAYLOAD_PART: Final = 1428 / 1514
"""The payload of a full frame with an MPTCP option, as a part of the frame."""

_WIFI_RATES: Final = (1_000_000, 12_000_000)
_STEP_SECONDS: Final = (2.0, 5.0)
_KILO: Final = 10**3
_GRID_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Step:
    """From `at` (seconds) on, Wi-Fi carries `rate` bits/s, with headers."""

    at: float
    rate: int


def wifi_trace(seed: int, seconds: float) -> tuple[Step, ...]:
    """The steps of the first `seconds`; the last one goes on."""
    numbers, steps, at = random.Random(seed), [], 0.0  # noqa: S311
    while at < seconds:
        rate = math.exp(numbers.uniform(*map(math.log, _WIFI_RATES)))
        steps.append(Step(at, round(rate / _KILO) * _KILO))
        at += numbers.uniform(*_STEP_SECONDS)
    return tuple(steps)


def segment_bytes(bitrate: int) -> float:
    """The size of a segment with headers."""
    return bitrate / 8 * SEGMENT_SECONDS / PAYLOAD_PART


def least_bytes(trace: Sequence[Step], segments: Sequence[Played], most: float) -> float | None:
    """The bytes with headers that Wi-Fi cannot carry of segments which a player plays without a stall.

    The player asks for one segment after the other, as soon as its buffer has room, and takes the bitrate from its
    buffer (`playback`). It plays the bitrates of `segments`, and begins when they began. `most` (bits/s) is what the
    other path carries. Of all times of arrival, in steps of 0.1 s, that lead to these bitrates, those with the least
    bytes count; None: there are none. Times are in seconds since the start of the trace.
    """
    first = segments[0]
    over_wifi = _carried(trace, first.arrived + len(segments) * SEGMENT_SECONDS)
    begun = math.ceil(first.arrived / _GRID_SECONDS)
    lacking = segment_bytes(first.bitrate) - over_wifi[begun] + over_wifi[round(first.requested / _GRID_SECONDS)]
    costs = {begun: max(lacking, 0.0)}
    for number in range(1, len(segments)):
        due = first.arrived + number * SEGMENT_SECONDS
        present, bitrate = segments[number - 1].bitrate, segments[number].bitrate
        arrivals: dict[int, float] = {}
        for before, cost in costs.items():
            requested = max(before, math.ceil((due + SEGMENT_SECONDS - MOST_BUFFERED_SECONDS) / _GRID_SECONDS))
            if next_bitrate(LADDER, present, due - requested * _GRID_SECONDS) != bitrate:
                continue
            for arrived in range(requested + 1, int(due / _GRID_SECONDS) + 1):
                lacking = segment_bytes(bitrate) - over_wifi[arrived] + over_wifi[requested]
                if lacking <= most / 8 * (arrived - requested) * _GRID_SECONDS:
                    arrivals[arrived] = min(cost + max(lacking, 0.0), arrivals.get(arrived, math.inf))
                if lacking <= 0:
                    break
        costs = arrivals
    return min(costs.values(), default=None)


def _carried(trace: Sequence[Step], seconds: float) -> list[float]:
    """What Wi-Fi can carry until each point of the grid, in bytes, up to `seconds`."""
    ends = [*(step.at for step in trace[1:]), math.inf]
    grid = [number * _GRID_SECONDS for number in range(math.ceil(seconds / _GRID_SECONDS) + 2)]
    parts = [0.0] * len(grid)
    for step, step_ends in zip(trace, ends, strict=True):
        for number in range(1, len(grid)):
            common = min(step_ends, grid[number]) - max(step.at, grid[number - 1])
            parts[number] += max(common, 0.0) * step.rate / 8
    return list(accumulate(parts))
