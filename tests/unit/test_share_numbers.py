"""The numbers of shares in a kernel program: how they come, last and go."""

from __future__ import annotations

import pytest
from examples import ends_of

from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.share_numbers import ShareNumbers
from mptcp_throttled.vocabulary.decision import Share, Throttle

SLOW, FAST = Rate.parse("1mbit"), Rate.parse("4mbit")
ONE, OTHER = (Share("ethernet", RateKind.CAP, who) for who in ("10.1.0.1", "10.1.0.2"))
FIRST, SECOND = ends_of(), ends_of(port=40001)


def give(shares: ShareNumbers, throttle: Throttle) -> dict[int, Rate]:
    """Let the first subflow have this rate; what the program lacks for that."""
    lacking = shares.new_rates([throttle])
    shares.note_rates([throttle])
    shares.note({FIRST: throttle})
    return lacking


def test_shares_are_numbered_from_one_and_rates_named_once() -> None:
    shares = ShareNumbers()
    assert not shares
    assert shares.new_rates([Throttle(ONE, SLOW), None, Throttle(OTHER, FAST), Throttle(ONE, SLOW)]) == {
        1: SLOW,
        2: FAST,
    }
    assert (shares.number(Throttle(ONE, SLOW)), shares.number(Throttle(OTHER, FAST))) == (1, 2)
    assert shares


def test_rate_is_lacking_until_the_program_has_it() -> None:
    shares = ShareNumbers()
    slow, fast = Throttle(ONE, SLOW), Throttle(ONE, FAST)
    for _ in range(2):
        assert shares.new_rates([slow]) == {1: SLOW}
    shares.note_rates([slow])
    assert shares.new_rates([slow]) == {}
    assert give(shares, fast) == {1: FAST}
    assert give(shares, fast) == {}


def test_share_is_used_while_it_has_a_subflow() -> None:
    shares = ShareNumbers()
    give(shares, Throttle(ONE, SLOW))
    shares.note({SECOND: Throttle(ONE, SLOW)})
    assert {*shares.subflows} == {FIRST, SECOND}
    shares.note({FIRST: None})
    assert shares.take_unused() == []
    shares.note({SECOND: None, ends_of(port=40002): None})
    assert {*shares.subflows} == set()
    assert shares.take_unused() == [1]
    assert shares.take_unused() == []
    assert not shares


def test_subflow_leaves_its_previous_share() -> None:
    shares = ShareNumbers()
    give(shares, Throttle(ONE, SLOW))
    assert give(shares, Throttle(OTHER, SLOW)) == {2: SLOW}
    assert shares.take_unused() == [1]
    assert shares.number(Throttle(OTHER, SLOW)) == 2


def test_share_without_subflows_stays_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("mptcp_throttled.kernel.share_numbers.time.monotonic", lambda: now)
    shares = ShareNumbers()
    shares.linger = 2.0
    give(shares, Throttle(ONE, SLOW))
    now = 200.0
    shares.note({FIRST: None})
    now = 201.9
    assert shares.take_unused() == []
    assert give(shares, Throttle(ONE, SLOW)) == {}, "it has its number, its rate and its debt"
    shares.note({FIRST: None})
    now = 203.9
    assert shares.take_unused() == [1]
    assert give(shares, Throttle(ONE, SLOW)) == {2: SLOW}


def test_nothing_is_left_after_clear() -> None:
    shares = ShareNumbers()
    give(shares, Throttle(ONE, SLOW))
    shares.clear()
    assert not shares
    assert not [*shares.subflows]
    assert shares.take_unused() == []
    assert give(shares, Throttle(ONE, SLOW)) == {2: SLOW}
