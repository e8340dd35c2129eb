"""How a video player adapts: which bitrate the next segment has, what its buffer holds, and when it stalls.

The bitrate follows the buffer alone, as BBA-0 (Huang and others, SIGCOMM 2014, section 4) does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

LADDER: Final = (500_000, 1_000_000, 2_000_000, 3_500_000, 5_000_000)
"""Bitrates in bits per second, the lowest first."""
SEGMENT_SECONDS: Final = 4.0
MOST_BUFFERED_SECONDS: Final = 24.0

_RESERVOIR_SECONDS: Final = 4.0
_FULL_SECONDS: Final = 16.0
"""From here on the bitrate is the highest; below the reservoir it is the lowest."""


def next_bitrate(ladder: Sequence[int], present: int, buffered: float) -> int:
    """The bitrate (bits/s) of the next segment after one of `present`, with `buffered` seconds in the buffer.

    It changes once the rate that the buffer stands for has reached the next bitrate above or below.
    """
    if buffered <= _RESERVOIR_SECONDS:
        return ladder[0]
    if buffered >= _FULL_SECONDS:
        return ladder[-1]
    share = (buffered - _RESERVOIR_SECONDS) / (_FULL_SECONDS - _RESERVOIR_SECONDS)
    affordable = ladder[0] + share * (ladder[-1] - ladder[0])
    higher = [bitrate for bitrate in ladder if present < bitrate <= affordable]
    lower = [bitrate for bitrate in ladder if affordable <= bitrate < present]
    return max(higher, default=min(lower, default=present))


@dataclass(frozen=True, slots=True)
class Played:
    """A segment: its `bitrate` (bits/s), and when it was requested, arrived, and was due (seconds).

    The first one is due when it arrives: playback begins with it.
    """

    bitrate: int
    requested: float
    arrived: float
    due: float

    @property
    def stalled(self) -> float:
        """For how many seconds playback had to wait for it."""
        return max(self.arrived - self.due, 0.0)

    def later(self, seconds: float) -> Played:
        """The same segment, `seconds` later."""
        return Played(self.bitrate, self.requested + seconds, self.arrived + seconds, self.due + seconds)


class Playback:
    """What has been played since the beginning; times are in seconds, of one clock."""

    def __init__(self) -> None:
        self.segments: list[Played] = []

    def buffered(self, at: float) -> float:
        """Seconds of video that have arrived and not been played at that time."""
        return max(self._end() - at, 0.0) if self.segments else 0.0

    def seconds_until_room(self, at: float) -> float:
        """How long it takes from that time on until the buffer has room for a segment."""
        return max(self.buffered(at) + SEGMENT_SECONDS - MOST_BUFFERED_SECONDS, 0.0)

    def next_bitrate(self, at: float) -> int:
        """The bitrate of a segment that is requested at that time."""
        present = self.segments[-1].bitrate if self.segments else LADDER[0]
        return next_bitrate(LADDER, present, self.buffered(at))

    def add(self, bitrate: int, requested: float, arrived: float) -> None:
        """A segment has arrived."""
        due = self._end() if self.segments else arrived
        self.segments.append(Played(bitrate, requested, arrived, due))

    def _end(self) -> float:
        last = self.segments[-1]
        return max(last.due, last.arrived) + SEGMENT_SECONDS
