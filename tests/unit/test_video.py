"""What `benchmarks/video` makes of a trace of Wi-Fi, and of the segments that were played."""

from itertools import pairwise

import pytest

from mptcp_lab.benchmarks.video import (
    Figures,
    Needed,
    Step,
    figures,
    ideal_overflow,
    least_ethernet,
    needed,
    verdicts,
    wifi_trace,
)
from mptcp_lab.playback import Played
from mptcp_throttle.units import Rate

MEGABYTE = 10**6
SLOW_THEN_FAST = (Step(0.0, 1_000_000), Step(4.0, 8_000_000))


def test_trace_is_the_same_for_a_seed_and_stays_within_its_bounds() -> None:
    trace = wifi_trace(1, 90)
    assert trace == wifi_trace(1, 180)[: len(trace)]
    assert trace != wifi_trace(2, 90)
    assert trace[0].at == 0.0
    assert all(1_000_000 <= step.rate <= 12_000_000 for step in trace)
    gaps = [after.at - before.at for before, after in pairwise(trace)]
    assert all(2.0 <= gap <= 5.0 for gap in gaps)


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        # Until 4 s Wi-Fi carries 0.5 MB, and 1 MB in each second after it.
        ([Needed(0.5 * MEGABYTE, 0, 4)], 0.0),
        ([Needed(2 * MEGABYTE, 0, 5)], 0.5 * MEGABYTE),
        ([Needed(2 * MEGABYTE, 3, 5)], 0.875 * MEGABYTE),
        # What is not needed before Wi-Fi is fast waits for it; what is carried early leaves Wi-Fi to the next.
        ([Needed(MEGABYTE, 0, 4), Needed(2 * MEGABYTE, 0, 6)], 0.5 * MEGABYTE),
        ([Needed(0.25 * MEGABYTE, 0, 4), Needed(0.25 * MEGABYTE, 0, 4)], 0.0),
        ([Needed(MEGABYTE, 0, 5), Needed(MEGABYTE, 0, 5)], 0.5 * MEGABYTE),
        # Without room in the buffer Wi-Fi is idle.
        ([Needed(MEGABYTE, 0, 5), Needed(2 * MEGABYTE, 6, 7)], MEGABYTE),
        ([], 0.0),
    ],
)
def test_optimum_is_what_wifi_cannot_carry_before_each_deadline(segments: list[Needed], expected: float) -> None:
    assert least_ethernet(SLOW_THEN_FAST, segments) == pytest.approx(expected)


def test_segments_are_needed_when_due_and_requested_once_there_is_room() -> None:
    played = [Played(5_000_000, 100.0, 102.0, 102.0), *(Played(5_000_000, 0, 0, 106.0 + 4 * n) for n in range(6))]
    needs = needed([segment.later(-99.0) for segment in played])
    assert [need.due for need in needs] == [3.0, 7.0, 11.0, 15.0, 19.0, 23.0, 27.0]
    assert [need.released for need in needs] == [1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 7.0]
    assert needs[0].size == pytest.approx(2_500_000 * 1514 / 1428)


def test_ideal_overflow_adds_what_wifi_lacks_and_at_least_the_cap() -> None:
    steady = (Step(0.0, 2_000_000),)
    played, over_ethernet = ideal_overflow(steady, 6, Rate(1_000_000), Rate(6_000_000))
    size = sum(segment.bitrate / 8 * 4 * 1514 / 1428 for segment in played)
    assert over_ethernet == pytest.approx(size * 4 / 6)
    played, over_ethernet = ideal_overflow(steady, 6, Rate(1_000_000), Rate(2_000_000))
    size = sum(segment.bitrate / 8 * 4 * 1514 / 1428 for segment in played)
    assert over_ethernet == pytest.approx(size / 3)
    assert not any(segment.stalled for segment in played)


def test_figures_count_segments_that_arrived_after_they_were_due() -> None:
    played = [Played(500_000, 0, 1, 1), Played(2_000_000, 1, 6.5, 5), Played(500_000, 7, 8, 10.5)]
    assert figures("cap", played, 3 * MEGABYTE) == Figures("cap", 3.0, 1, 1.5, 1.0)


def test_each_target_is_met_or_missed_beside_what_is_allowed() -> None:
    by_way = {
        "uncapped": Figures("uncapped", 40.0, 0, 0.0, 4.0),
        "overflow": Figures("overflow", 14.0, 1, 0.5, 3.95),
        "optimum": Figures("optimum", 10.0, 0, 0.0, 4.0),
    }
    assert list(verdicts(by_way)) == [
        "missed: stalls: 1, allowed 0",
        "met: mean bitrate: 3.95 Mb/s, at least 3.92",
        "missed: Ethernet: 14.0 MB, at most 13.0, 1.3 times the optimum",
        "saving against uncapped: 65 % of the Ethernet bytes",
    ]
