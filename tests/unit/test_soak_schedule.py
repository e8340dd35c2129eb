"""What happens in a long run follows from its seed, and services go on for most of the time."""

from __future__ import annotations

from mptcp_lab.soak.proxy import Proxy
from mptcp_lab.soak.schedule import ENDS, GOES_ON, STEADY, Event, events_of_round, parts


def test_events_of_a_round_follow_from_the_seed() -> None:
    rounds = [events_of_round(1, number, 0.9) for number in range(50)]
    assert rounds == [events_of_round(1, number, 0.9) for number in range(50)]
    assert rounds != [events_of_round(2, number, 0.9) for number in range(50)]


def test_services_end_only_in_the_last_part_of_the_time() -> None:
    steady = {planned.event for number in range(200) for planned in events_of_round(1, number, STEADY - 0.01)}
    ending = {planned.event for number in range(200) for planned in events_of_round(1, number, STEADY)}
    assert steady == set(GOES_ON)
    assert ending == set(Event)
    assert set(ENDS) | set(GOES_ON) == set(Event)


def test_events_of_a_round_come_one_after_the_other_within_it() -> None:
    for number in range(200):
        times = [planned.at for planned in events_of_round(1, number, 0.9)]
        assert times == sorted(times)
        assert all(0 < at < 1 for at in times)


def test_each_event_has_something_that_happens() -> None:
    assert Proxy.actions.keys() == set(Event)


def test_long_runs_have_several_lives_of_the_services() -> None:
    assert [parts(60 * minutes) for minutes in (5, 40, 120, 7 * 24 * 60)] == [1, 2, 6, 6]
