"""When the kernel is looked at again: soon after trouble, ever later while it lasts."""

from __future__ import annotations

import pytest

from mptcp_throttled.reconcile.schedule import Schedule

INTERVAL = 5.0


def compared_at(schedule: Schedule, now: float, *, trouble: bool = False) -> None:
    schedule.compared(now, now, INTERVAL, trouble=trouble)


def test_the_first_comparison_is_due_at_once_and_the_next_after_the_interval() -> None:
    schedule = Schedule(100.0)
    assert schedule.due == 100.0
    compared_at(schedule, 100.0)
    assert schedule.due == 105.0


def test_a_change_is_looked_at_soon() -> None:
    schedule = Schedule(100.0)
    compared_at(schedule, 100.0)
    schedule.changed()
    assert schedule.due == pytest.approx(100.1)
    compared_at(schedule, 101.0)
    assert schedule.due == 106.0


def test_while_trouble_lasts_attempts_become_rarer_up_to_the_interval() -> None:
    schedule = Schedule(0.0)
    pauses = []
    for _ in range(8):
        now = schedule.due
        compared_at(schedule, now, trouble=True)
        pauses.append(schedule.due - now)
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])


def test_changes_do_not_hasten_what_trouble_has_delayed() -> None:
    schedule = Schedule(0.0)
    for _ in range(5):
        compared_at(schedule, schedule.due, trouble=True)
    due = schedule.due
    schedule.changed()
    assert schedule.due == due


def test_one_clean_comparison_ends_the_delays() -> None:
    schedule = Schedule(0.0)
    for _ in range(5):
        compared_at(schedule, schedule.due, trouble=True)
    compared_at(schedule, 20.0)
    assert schedule.due == 25.0
    schedule.changed()
    assert schedule.due == pytest.approx(20.1)


def test_a_clean_comparison_right_after_a_repair_does_not_end_them() -> None:
    schedule = Schedule(0.0)
    for _ in range(5):
        compared_at(schedule, schedule.due, trouble=True)
    soon = schedule.due - 3.2 + 0.01
    compared_at(schedule, soon)
    schedule.changed()
    assert schedule.due == pytest.approx(soon + 3.2)


@pytest.mark.parametrize("trouble", [False, True])
def test_a_look_that_takes_long_is_not_taken_often(trouble: bool) -> None:
    schedule = Schedule(0.0)
    schedule.compared(0.0, 2.0, INTERVAL, trouble=trouble)
    assert schedule.due == (22.0 if trouble else 802.0)
    schedule.changed()
    assert schedule.due == 22.0


def test_a_glance_is_due_an_interval_after_a_look_of_any_kind_and_later_if_it_takes_long() -> None:
    schedule = Schedule(100.0)
    assert schedule.glance_due == 100.0
    schedule.compared(100.0, 101.0, INTERVAL, trouble=False)
    assert schedule.glance_due == 106.0
    schedule.glanced(106.0, 106.01, INTERVAL)
    assert schedule.glance_due == pytest.approx(111.01)
    schedule.glanced(112.0, 112.1, INTERVAL)
    assert schedule.glance_due == pytest.approx(122.1)


def test_somebody_who_undoes_it_less_often_than_we_look_is_answered_ever_later_too() -> None:
    schedule = Schedule(0.0)
    compared_at(schedule, 0.0, trouble=True)
    clean = schedule.due
    compared_at(schedule, clean)
    compared_at(schedule, clean + 0.3, trouble=True)
    assert schedule.due == pytest.approx(clean + 0.3 + 0.4)
