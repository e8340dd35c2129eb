"""Connections are passed on once they have lasted, and what has become of them from then on at once."""

from __future__ import annotations

from examples import connection, subflow

from mptcp_throttled.control.lasting import Lasting

OLD, YOUNG = connection(1, subflow("10.1.0.2", at=1.0)), connection(2, subflow("10.1.0.3", at=9.0))


def test_connection_that_is_old_enough_is_passed_on_at_once() -> None:
    lasting = Lasting({})
    assert lasting.take({OLD.token: OLD}, 1.0) == {OLD.token: OLD}
    assert lasting.oldest() is None


def test_connection_that_is_too_young_is_passed_on_later_as_it_is_then() -> None:
    lasting = Lasting({})
    assert lasting.take({YOUNG.token: YOUNG}, 8.0) == {}
    assert lasting.oldest() == 9.0
    joined = connection(2, *YOUNG.subflows, subflow("10.2.0.3", at=9.5))
    assert lasting.take({joined.token: joined}, 8.9) == {}
    assert lasting.take({}, 9.0) == {joined.token: joined}
    assert lasting.take({}, 9.1) == {}


def test_end_of_a_connection_that_was_never_passed_on_is_not_passed_on() -> None:
    lasting = Lasting({})
    lasting.take({YOUNG.token: YOUNG}, 8.0)
    assert lasting.take({YOUNG.token: None, OLD.token: None}, 10.0) == {}
    assert lasting.oldest() is None


def test_change_of_a_connection_that_was_passed_on_is_passed_on_at_once() -> None:
    lasting = Lasting({OLD.token: OLD})
    moved = connection(1, subflow("10.2.0.2", at=9.0))
    assert lasting.take({moved.token: moved}, 5.0) == {moved.token: moved}
    assert lasting.take({moved.token: None}, 5.0) == {moved.token: None}
    assert lasting.take({moved.token: moved}, 5.0) == {}
