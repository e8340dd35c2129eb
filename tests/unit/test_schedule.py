"""When the kernel is reconciled fully: soon after trouble, with exponential back-off while trouble lasts."""

from __future__ import annotations

import pytest

from mptcp_throttled.enforcing.schedule import Schedule

INTERVAL = 5.0


def reconciled_at(schedule: Schedule, now: float, *, trouble: bool = False) -> None:
    schedule.reconciled(now, now, INTERVAL, trouble=trouble)


def test_full_reconcile_is_due_at_once_and_then_after_the_interval() -> None:
    schedule = Schedule(100.0)
    assert schedule.due == 100.0
    reconciled_at(schedule, 100.0)
    assert schedule.due == 105.0


def test_full_reconcile_follows_a_change_soon() -> None:
    schedule = Schedule(100.0)
    reconciled_at(schedule, 100.0)
    schedule.changed()
    assert schedule.due == pytest.approx(100.1)
    reconciled_at(schedule, 101.0)
    assert schedule.due == 106.0


def test_full_reconcile_backs_off_up_to_the_interval() -> None:
    schedule = Schedule(0.0)
    pauses = []
    for _ in range(8):
        now = schedule.due
        reconciled_at(schedule, now, trouble=True)
        pauses.append(schedule.due - now)
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])


def test_changes_do_not_shorten_the_back_off() -> None:
    schedule = Schedule(0.0)
    for _ in range(5):
        reconciled_at(schedule, schedule.due, trouble=True)
    due = schedule.due
    schedule.changed()
    assert schedule.due == due


def test_back_off_ends_with_a_reconcile_without_trouble() -> None:
    schedule = Schedule(0.0)
    for _ in range(5):
        reconciled_at(schedule, schedule.due, trouble=True)
    reconciled_at(schedule, 20.0)
    assert schedule.due == 25.0
    schedule.changed()
    assert schedule.due == pytest.approx(20.1)


def test_back_off_outlasts_a_quiet_moment_after_a_repair() -> None:
    schedule = Schedule(0.0)
    for _ in range(5):
        reconciled_at(schedule, schedule.due, trouble=True)
    soon = schedule.due - 3.2 + 0.01
    reconciled_at(schedule, soon)
    schedule.changed()
    assert schedule.due == pytest.approx(soon + 3.2)


@pytest.mark.parametrize("trouble", [False, True])
def test_full_reconcile_that_takes_long_becomes_rare(trouble: bool) -> None:
    schedule = Schedule(0.0)
    schedule.reconciled(0.0, 2.0, INTERVAL, trouble=trouble)
    assert schedule.due == (22.0 if trouble else 802.0)
    schedule.changed()
    assert schedule.due == 22.0


def test_quick_check_follows_after_the_interval_or_later_if_slow() -> None:
    schedule = Schedule(100.0)
    assert schedule.quick_check_due == 100.0
    schedule.reconciled(100.0, 101.0, INTERVAL, trouble=False)
    assert schedule.quick_check_due == 106.0
    schedule.quick_checked(106.0, 106.01, INTERVAL)
    assert schedule.quick_check_due == pytest.approx(111.01)
    schedule.quick_checked(112.0, 112.1, INTERVAL)
    assert schedule.quick_check_due == pytest.approx(122.1)


def test_back_off_grows_if_repairs_are_undone_between_full_reconciles() -> None:
    schedule = Schedule(0.0)
    reconciled_at(schedule, 0.0, trouble=True)
    clean = schedule.due
    reconciled_at(schedule, clean)
    reconciled_at(schedule, clean + 0.3, trouble=True)
    assert schedule.due == pytest.approx(clean + 0.3 + 0.4)
