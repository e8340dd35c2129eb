"""When the kernel is reconciled fully: soon after trouble, with exponential back-off while trouble lasts."""

from __future__ import annotations

import pytest

from mptcp_throttled.enforcing.reconcile_times import ReconcileTimes

INTERVAL = 5.0


def reconciled_at(times: ReconcileTimes, now: float, *, trouble: bool = False) -> None:
    times.reconciled(now, now, INTERVAL, trouble=trouble)


def test_full_reconcile_is_due_at_once_and_then_after_the_interval() -> None:
    times = ReconcileTimes(100.0)
    assert times.due == 100.0
    reconciled_at(times, 100.0)
    assert times.due == 105.0


def test_full_reconcile_follows_a_change_soon() -> None:
    times = ReconcileTimes(100.0)
    reconciled_at(times, 100.0)
    times.changed()
    assert times.due == pytest.approx(100.1)
    reconciled_at(times, 101.0)
    assert times.due == 106.0


def test_full_reconcile_backs_off_up_to_the_interval() -> None:
    times = ReconcileTimes(0.0)
    pauses = []
    for _ in range(8):
        now = times.due
        reconciled_at(times, now, trouble=True)
        pauses.append(times.due - now)
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])


def test_changes_do_not_shorten_the_back_off() -> None:
    times = ReconcileTimes(0.0)
    for _ in range(5):
        reconciled_at(times, times.due, trouble=True)
    due = times.due
    times.changed()
    assert times.due == due


def test_back_off_ends_with_a_reconcile_without_trouble() -> None:
    times = ReconcileTimes(0.0)
    for _ in range(5):
        reconciled_at(times, times.due, trouble=True)
    reconciled_at(times, 20.0)
    assert times.due == 25.0
    times.changed()
    assert times.due == pytest.approx(20.1)


def test_back_off_outlasts_a_quiet_moment_after_a_repair() -> None:
    times = ReconcileTimes(0.0)
    for _ in range(5):
        reconciled_at(times, times.due, trouble=True)
    soon = times.due - 3.2 + 0.01
    reconciled_at(times, soon)
    times.changed()
    assert times.due == pytest.approx(soon + 3.2)


@pytest.mark.parametrize("trouble", [False, True])
def test_full_reconcile_that_takes_long_becomes_rare(trouble: bool) -> None:
    times = ReconcileTimes(0.0)
    times.reconciled(0.0, 2.0, INTERVAL, trouble=trouble)
    assert times.due == (22.0 if trouble else 802.0)
    times.changed()
    assert times.due == 22.0


def test_quick_check_follows_after_the_interval_or_later_if_slow() -> None:
    times = ReconcileTimes(100.0)
    assert times.quick_check_due == 100.0
    times.reconciled(100.0, 101.0, INTERVAL, trouble=False)
    assert times.quick_check_due == 106.0
    times.quick_checked(106.0, 106.01, INTERVAL)
    assert times.quick_check_due == pytest.approx(111.01)
    times.quick_checked(112.0, 112.1, INTERVAL)
    assert times.quick_check_due == pytest.approx(122.1)


def test_back_off_grows_if_repairs_are_undone_between_full_reconciles() -> None:
    times = ReconcileTimes(0.0)
    reconciled_at(times, 0.0, trouble=True)
    clean = times.due
    reconciled_at(times, clean)
    reconciled_at(times, clean + 0.3, trouble=True)
    assert times.due == pytest.approx(clean + 0.3 + 0.4)
