"""How the player of a video adapts its bitrate, and when it stalls."""

import pytest

from mptcp_lab.playback import LADDER, Playback, next_bitrate


@pytest.mark.parametrize(
    ("present", "buffered", "expected"),
    [
        (5_000_000, 4.0, 500_000),
        (500_000, 4.5, 500_000),
        (500_000, 8.0, 2_000_000),
        (2_000_000, 11.9, 2_000_000),
        (2_000_000, 12.0, 3_500_000),
        (500_000, 15.9, 3_500_000),
        (500_000, 16.0, 5_000_000),
        (5_000_000, 12.1, 5_000_000),
        (5_000_000, 12.0, 3_500_000),
        (5_000_000, 6.0, 2_000_000),
    ],
)
def test_bitrate_follows_the_buffer_and_changes_at_whole_rungs(present: int, buffered: float, expected: int) -> None:
    assert next_bitrate(LADDER, present, buffered) == expected


def played(*requested_and_arrived: tuple[float, float]) -> Playback:
    playback = Playback()
    for requested, arrived in requested_and_arrived:
        playback.add(playback.next_bitrate(requested), requested, arrived)
    return playback


def test_playback_begins_with_the_first_segment() -> None:
    playback = played((10.0, 12.0))
    assert [segment.stalled for segment in playback.segments] == [0.0]
    assert playback.buffered(13.0) == 3.0


def test_segment_that_arrives_late_stalls_and_delays_all_later_ones() -> None:
    playback = played((10.0, 12.0), (12.0, 18.5), (18.5, 19.0))
    assert [segment.stalled for segment in playback.segments] == [0.0, 2.5, 0.0]
    assert playback.segments[2].due == 22.5
    assert playback.buffered(27.0) == 0.0


def test_full_buffer_has_room_once_a_segment_has_been_played() -> None:
    playback = played(*((0.0, 0.0) for _ in range(6)))
    assert playback.buffered(1.0) == 23.0
    assert playback.seconds_until_room(1.0) == 3.0
    assert playback.seconds_until_room(4.0) == 0.0
    assert Playback().seconds_until_room(4.0) == 0.0
