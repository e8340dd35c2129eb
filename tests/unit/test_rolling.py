"""Rolling budgets: what is used leaves after its time, over restarts and whatever the clock does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_ledger import BERLIN, MONTHLY, NOVEMBER, ONE, TWO, Book, network, to

from mptcp_throttle.model import Budget, Every
from mptcp_throttled.accounting import ledger_rows
from mptcp_throttled.accounting.forecast import forecast
from mptcp_throttled.accounting.ledger import Carried, Choice
from mptcp_throttled.accounting.rolling import PARTS
from mptcp_throttled.vocabulary.budgets import Addition, StagesEnded

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
ROLLING: Final = replace(MONTHLY, rolling=True)
DAILY: Final = replace(ROLLING, every=Every.DAY)
"""1000 bytes in 24 hours; a stage at 750, and another at 1000. `NOVEMBER` is 11:00 in UTC."""


def book_of(budget: Budget = DAILY) -> Book:
    return Book((network(budget),))


def an_hour_later(book: Book, *carried: Carried) -> None:
    book.count(after=HOUR, seconds=HOUR)
    book.count(*carried)


def test_use_leaves_by_hours_and_its_stages_end() -> None:
    book = book_of()
    book.count(to(ONE, 700))
    an_hour_later(book, to(ONE, 300))
    assert book.stages() == {ONE: 2}
    (reached,) = book.ledger.spent["ethernet"][ONE]
    # The first 700 were used between 11:00 and 12:00: they leave at 12:00 of the next day.
    assert reached.until == NOVEMBER + 25 * HOUR
    assert book.count(after=23.9 * HOUR - 10) == []
    (ended,) = book.count(after=HOUR / 2)
    assert isinstance(ended, StagesEnded)
    assert (ended.subject, ended.use.used, ended.stages) == (ONE, 300, 0)
    assert (book.used(), book.stages()) == ({ONE: 300}, {})
    book.count(after=HOUR)
    assert book.used() == {}


def test_stages_that_are_removed_end_and_the_rest_counts_on() -> None:
    book = book_of()
    book.count(to(ONE, 1000))
    assert book.stages() == {ONE: 2}
    book.networks = (network(replace(DAILY, stages=DAILY.stages[1:])),)
    book.ledger.configure(book.networks, BERLIN, book.at)
    book.count(to(TWO, 1000))
    assert book.stages() == {ONE: 1, TWO: 1}


def test_more_use_lets_a_stage_end_later() -> None:
    book = book_of()
    book.count(to(ONE, 1000))
    an_hour_later(book, to(ONE, 800))
    (reached,) = book.ledger.spent["ethernet"][ONE]
    assert reached.until == NOVEMBER + 25 * HOUR
    book.count(to(ONE, 200))
    (reached,) = book.ledger.spent["ethernet"][ONE]
    assert reached.until == NOVEMBER + 26 * HOUR


def test_restart_keeps_parts_and_drops_those_that_have_left() -> None:
    book = book_of()
    for _ in range(3):
        an_hour_later(book, to(ONE, 100), to(TWO, 10))
        book.restart()
    assert book.used() == {ONE: 300, TWO: 30}
    book.count(to(ONE, 50))
    book.restart(written=False)
    assert book.used() == {ONE: 300, TWO: 30}
    book.at += 24 * HOUR
    book.restart()
    book.count()
    assert book.used() == {ONE: 100, TWO: 10}
    book.restart()
    assert book.used() == {ONE: 100, TWO: 10}
    rows = book.database.execute("SELECT COUNT(*) FROM budget_parts").fetchone()
    assert rows == (2,)


def test_changes_by_hand_replace_what_was_counted() -> None:
    book = book_of()
    book.count(to(ONE, 900))
    an_hour_later(book, to(ONE, 100))
    (key,) = book.ledger.matching("ethernet", ONE, Choice())
    book.ledger.set_used(key, ONE, 400, book.at)
    book.restart()
    assert (book.used(), book.stages()) == ({ONE: 400}, {})
    book.ledger.add(key, ONE, Addition(500, 500, None), book.at)
    book.count(to(ONE, 600))
    book.restart()
    assert book.used() == {ONE: 500}
    book.ledger.reset("ethernet", Choice(), book.at)
    book.count(to(ONE, 5))
    book.restart()
    assert book.used() == {ONE: 5}


def test_budget_with_periods_and_a_rolling_one_are_not_the_same() -> None:
    book = book_of(replace(DAILY, rolling=False))
    book.count(to(ONE, 400))
    book.networks = (network(DAILY),)
    book.restart()
    assert book.used() == {}


def test_database_without_parts_is_read() -> None:
    book = book_of()
    book.database.execute("DROP TABLE budget_parts")
    book.database.executescript(ledger_rows.SCHEMA)
    book.restart(written=False)
    book.count(to(ONE, 400))
    book.restart()
    assert book.used() == {ONE: 400}


def test_first_use_by_a_wrong_clock_follows_when_the_clock_is_right() -> None:
    book = Book((network(DAILY),), at=NOVEMBER + 4000 * DAY, is_synchronised=False)
    book.count(to(ONE, 400))
    book.restart()
    book.at, book.is_synchronised = NOVEMBER, True
    book.count(to(ONE, 5))
    book.restart()
    assert book.used() == {ONE: 405}
    book.count(after=26 * HOUR, seconds=26 * HOUR)
    assert book.used() == {}


def test_forecast_takes_what_leaves_into_account() -> None:
    book = book_of()
    for _ in range(24):
        an_hour_later(book, to(ONE, 30))
    # As much leaves as is used: 720 of 1000 bytes are used at each moment.
    foreseen = forecast(book.uses()[ONE])
    assert foreseen is not None
    assert foreseen.spent_at is None
    for _ in range(3):
        an_hour_later(book, to(ONE, 70))
    foreseen = forecast(book.uses()[ONE])
    assert foreseen is not None
    assert foreseen.earliest is not None


STEPS: Final = st.lists(
    st.tuples(st.sampled_from([ONE, TWO]), st.integers(0, 400), st.floats(0, 2 * DAY), st.booleans()), max_size=30
)


@given(st.sampled_from(list(Every)), STEPS)
def test_each_byte_counts_for_its_time_and_one_part_more_at_most(
    every: Every, steps: Iterable[tuple[object, int, float, bool]]
) -> None:
    book, carried = book_of(replace(ROLLING, every=every)), []
    seconds, number = PARTS[every]
    for client, amount, after, is_restarted in steps:
        book.count(after=after, seconds=max(after, 1.0))
        book.count(to(client, amount), after=0.0, seconds=0.1)  # type: ignore[arg-type]
        carried.append((client, book.at, amount))
        if is_restarted:
            book.restart()
        for subject in (ONE, TWO):
            ages = [(book.at - at, used) for each, at, used in carried if each == subject]
            least = sum(used for age, used in ages if age <= number * seconds)
            most = sum(used for age, used in ages if age <= (number + 1) * seconds)
            used_now = book.used().get(subject, 0)
            assert least <= used_now <= most
            assert (subject in book.stages()) == (used_now >= 750)


@given(st.lists(st.tuples(st.integers(0, 400), st.floats(-40 * DAY, 40 * DAY), st.booleans()), max_size=30))
def test_clock_that_goes_back_counts_on_and_nothing_counts_twice(steps: Iterable[tuple[int, float, bool]]) -> None:
    book, total = book_of(), 0
    for amount, after, is_synchronised in steps:
        book.is_synchronised = is_synchronised
        before = book.used().get(ONE, 0)
        book.count(to(ONE, amount), after=after)
        total += amount
        assert book.used().get(ONE, 0) <= min(before + amount, total)
        if not is_synchronised or after <= 0:
            assert book.used().get(ONE, 0) == before + amount or book.at > NOVEMBER
        book.restart()
    assert sum(book.used().values()) == pytest.approx(book.ledger.totals()[0].used)
