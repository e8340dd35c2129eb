"""Each refused object has a back-off of its own."""

from __future__ import annotations

import math

import pytest

from mptcp_throttled.enforcing.refused_objects import KernelObject, ObjectKind
from mptcp_throttled.enforcing.retries import Retries

ONE, TWO = KernelObject(ObjectKind.CLASS, 2), KernelObject(ObjectKind.CLASS, 3)
LONGEST = 1.0


def refuse(retries: Retries, now: float, *objects: KernelObject, took: float = 0.0) -> None:
    due = retries.take_due(now)
    retries.attempted(due, dict.fromkeys(objects, "ENOMEM"), now, now + took, LONGEST)


def test_retries_of_nothing_are_never_due() -> None:
    retries = Retries()
    assert (retries.next_due, retries.take_due(1e9), retries.errors, len(retries)) == (math.inf, frozenset(), (), 0)


def test_retry_delays_double_up_to_the_longest() -> None:
    retries, now, delays = Retries(), 0.0, []
    for _ in range(6):
        refuse(retries, now, ONE)
        delays.append(retries.next_due - now)
        now = retries.next_due
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_retry_of_one_object_leaves_the_back_off_of_another() -> None:
    retries = Retries()
    refuse(retries, 0.0, ONE)
    refuse(retries, 0.1, ONE)
    retries.attempted((), {TWO: "EPERM"}, 0.15, 0.15, LONGEST)
    assert set(retries.waiting(frozenset())) == {ONE, TWO}
    assert set(retries.waiting({TWO})) == {ONE}
    assert retries.take_due(0.26) == {TWO}
    assert retries.take_due(0.31) == {ONE}
    assert retries.errors == ("ENOMEM", "EPERM")


def test_retry_that_succeeds_or_is_not_planned_any_more_is_forgotten() -> None:
    retries = Retries()
    refuse(retries, 0.0, ONE, TWO)
    retries.attempted(retries.take_due(1.0), {TWO: "EPERM"}, 1.0, 1.0, LONGEST)
    assert (retries.errors, len(retries)) == (("EPERM",), 1)
    refuse(retries, 2.0, ONE)
    assert retries.next_due == pytest.approx(2.1), "the back-off starts over"
    retries.forget([ONE, TWO])  # not planned any more
    assert (retries.next_due, len(retries)) == (math.inf, 0)


def test_retries_take_a_tenth_of_the_time_at_most() -> None:
    retries = Retries()
    refuse(retries, 0.0, ONE, took=0.5)
    assert retries.next_due == pytest.approx(0.5 + 5.0)
