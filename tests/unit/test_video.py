"""What a trace of Wi-Fi is, and what a video needs of another path beside it."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from mptcp_lab.playback import Playback, Played
from mptcp_lab.video import Step, least_bytes, segment_bytes, wifi_trace

MEGABYTE = 10**6
ETHERNET = 10_000_000
FAST, SLOW = Step(0.0, 10_000_000), Step(0.0, 1_000_000)


def played(trace: Sequence[Step], ethernet: int, segments: int = 12) -> tuple[list[Played], float]:
    """How the player plays while Ethernet always carries that much (bits/s), and the bytes that it has carried."""
    playback, at, carried = Playback(), 0.0, 0.0
    for _ in range(segments):
        at += playback.seconds_until_room(at)
        bitrate, requested, left = playback.next_bitrate(at), at, 0.0
        left = segment_bytes(bitrate)
        while left > 0:
            wifi = [step.rate for step in trace if step.at <= at][-1]
            left -= (wifi + ethernet) / 8 * 0.01
            carried += ethernet / 8 * 0.01
            at += 0.01
        playback.add(bitrate, requested, at)
    return playback.segments, carried


def test_trace_is_the_same_for_a_seed_and_stays_within_its_bounds() -> None:
    trace = wifi_trace(1, 90)
    assert trace == wifi_trace(1, 180)[: len(trace)]
    assert trace != wifi_trace(2, 90)
    assert trace[0].at == 0.0
    assert all(1_000_000 <= step.rate <= 12_000_000 for step in trace)
    gaps = [after.at - before.at for before, after in pairwise(trace)]
    assert all(2.0 <= gap <= 5.0 for gap in gaps)


def test_wifi_that_is_fast_enough_needs_no_other_path() -> None:
    segments, _ = played([FAST], 0)
    assert least_bytes([FAST], segments, ETHERNET) == 0.0


def test_slow_wifi_leaves_to_the_other_path_what_it_lacks() -> None:
    segments, carried = played([SLOW], ETHERNET)
    size = sum(segment_bytes(segment.bitrate) for segment in segments)
    least = least_bytes([SLOW], segments, ETHERNET)
    assert least is not None
    # Wi-Fi is busy all the time, to the last moment at which the last segment may come.
    assert size - 1_000_000 / 8 * 48 <= least < carried
    assert least == pytest.approx(size - 1_000_000 / 8 * 48, rel=0.1)


def test_wifi_that_becomes_fast_in_time_carries_what_the_buffer_spares() -> None:
    trace = [FAST, Step(30.0, 1_000_000), Step(34.0, 10_000_000)]
    segments, carried = played(trace, ETHERNET)
    least = least_bytes(trace, segments, ETHERNET)
    assert least is not None
    # The buffer of 24 s lasts beyond the slow time; the first bitrates rise as fast as both paths together let them.
    assert least < carried / 4


def test_bitrates_that_no_times_allow_have_no_least() -> None:
    segments, _ = played([FAST], 0, 4)
    assert least_bytes([SLOW], segments, 0) is None
