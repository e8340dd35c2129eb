"""The ledger of budgets: what is used, which stages are reached, and what periods, clocks and restarts do to that."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from ipaddress import ip_address
from itertools import pairwise
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from examples import ETHERNET, WIFI
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttle.model import AccessNetwork, Budget, Counting, Every, Per, RateKind, Stage, Window
from mptcp_throttle.units import Rate
from mptcp_throttle.when import When
from mptcp_throttled.accounting import ledger as ledger_module
from mptcp_throttled.accounting import ledger_rows
from mptcp_throttled.accounting.budget_account import BudgetUse
from mptcp_throttled.accounting.clock_trust import STAY_SECONDS
from mptcp_throttled.accounting.ledger import Carried, Choice, Ledger
from mptcp_throttled.accounting.ledger_rows import read_accounts, write_changes
from mptcp_throttled.vocabulary.budgets import (
    AccountKey,
    Addition,
    BudgetChange,
    LevelReached,
    PeriodBegun,
    Subject,
    Use,
)

BERLIN: Final = ZoneInfo("Europe/Berlin")
ONE, TWO = ip_address("10.1.0.1"), ip_address("10.1.0.2")
SLOWER: Final = Stage(0.75, {RateKind.CAP: Rate.parse("512kbit")})
SLOW: Final = Stage(1.0, {RateKind.CAP: Rate.parse("256kbit")})
MONTHLY: Final = Budget(1000, Per.CLIENT, Counting.BOTH, Every.MONTH, 1, 0.5, (SLOWER, SLOW))


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


NOVEMBER: Final = at("2026-11-28 12:00")


def network(*budgets: Budget, schedule: tuple[Window, ...] = ()) -> AccessNetwork:
    return replace(ETHERNET, budgets=budgets, schedule=schedule)


def to(client: Subject, sent: int, received: int = 0, *, is_mptcp: bool = True) -> Carried:
    return Carried("ethernet", client, sent, received, is_mptcp)


@dataclass
class Book:
    """A ledger on a database, which a test can end and begin again as a killed daemon would."""

    networks: tuple[AccessNetwork, ...]
    at: float = NOVEMBER
    is_synchronised: bool | None = True
    told: list[BudgetChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.executescript(ledger_rows.SCHEMA)
        self.restart()

    def restart(self, *, written: bool = True) -> None:
        """The next instance; what was not `written` is lost."""
        if written and hasattr(self, "ledger"):
            self.write()
        source = None if self.is_synchronised is None else lambda: bool(self.is_synchronised)
        self.ledger = Ledger(read_accounts(self.database)[0], source)
        self.ledger.configure((WIFI, *self.networks), BERLIN, self.at)

    def write(self) -> None:
        with self.database:
            write_changes(self.database, self.ledger.changes())
        self.ledger.written()

    def count(self, *carried: Carried, after: float = 1.0, seconds: float = 1.0) -> list[BudgetChange]:
        """Count what was carried in the last `seconds`; the wall clock goes on by `after` seconds."""
        self.at += after
        told = self.ledger.count(carried, self.at, seconds)
        self.told += told
        return told

    def uses(self) -> dict[Subject, BudgetUse]:
        return {use.subject: use for use in self.ledger.uses(self.at)}

    def used(self) -> dict[Subject, int]:
        return {subject: use.use.used for subject, use in self.uses().items()}

    def stages(self) -> dict[Subject, int]:
        """How many stages each subject has reached, as rules are told."""
        spent = self.ledger.spent.get("ethernet", {})
        return {subject: reached[0].stages for subject, reached in spent.items()}


def test_client_reaches_stages_by_what_it_has_used() -> None:
    book = Book((network(MONTHLY),))
    assert book.count(to(ONE, 400), to(TWO, 1)) == []
    (warned,) = book.count(to(ONE, 50, 50))
    assert warned == LevelReached(AccountKey("ethernet", MONTHLY.key), MONTHLY, ONE, Use(500), 0)
    assert book.stages() == {}
    assert [each.stages for each in book.count(to(ONE, 250)) if isinstance(each, LevelReached)] == [1]
    assert book.stages() == {ONE: 1}
    assert [each.stages for each in book.count(to(ONE, 900)) if isinstance(each, LevelReached)] == [2]
    assert (book.stages(), book.used()) == ({ONE: 2}, {ONE: 1650, TWO: 1})
    (reached,) = book.ledger.spent["ethernet"][ONE]
    assert (reached.stages, reached.until) == (2, at("2026-12-01 00:00"))
    assert book.count(to(ONE, 900)) == []


@pytest.mark.parametrize(("counting", "used"), [(Counting.DOWN, 30), (Counting.UP, 12), (Counting.BOTH, 42)])
def test_only_bytes_of_the_direction_count(counting: Counting, used: int) -> None:
    book = Book((network(replace(MONTHLY, counting=counting, per=Per.NETWORK)),))
    book.count(to(ONE, 10, 5), to(TWO, 20, 7, is_mptcp=False), Carried("wifi", ONE, 99, 99, is_mptcp=True))
    (use,) = book.uses().values()
    of_two = {Counting.DOWN: 20, Counting.UP: 7, Counting.BOTH: 27}[counting]
    assert use.use == Use(used, of_two)


def test_new_period_frees_all_and_begins_once() -> None:
    book = Book((network(MONTHLY),))
    book.count(to(ONE, 1000), to(TWO, 2000))
    assert book.stages() == {ONE: 2, TWO: 2}
    book.at = at("2026-11-30 23:59:59")
    (begun,) = book.count(to(ONE, 7))
    assert isinstance(begun, PeriodBegun)
    assert (begun.freed, begun.period) == (2, (at("2026-12-01 00:00"), at("2027-01-01 00:00")))
    assert (book.stages(), book.used()) == ({}, {})
    assert book.count(to(ONE, 5)) == []
    book.at = at("2026-11-30 12:00")
    assert book.count(to(ONE, 5)) == []
    assert book.used() == {ONE: 10}


def test_no_period_begins_while_the_clock_is_not_synchronised() -> None:
    book = Book((network(MONTHLY),))
    book.count(to(ONE, 1000))
    book.is_synchronised, book.at = False, at("2027-05-01 00:00")
    assert book.count(to(ONE, 1)) == []
    (reached,) = book.ledger.spent["ethernet"][ONE]
    assert (book.used(), reached.until) == ({ONE: 1001}, None)
    book.is_synchronised, book.at = True, at("2026-11-29 00:00")
    assert book.count(to(ONE, 1)) == []
    (reached,) = book.ledger.spent["ethernet"][ONE]
    assert (book.used(), reached.until) == ({ONE: 1002}, at("2026-12-01 00:00"))


def test_clock_that_nothing_confirms_may_jump_far_ahead_and_back() -> None:
    book = Book((network(MONTHLY),), is_synchronised=None)
    book.count()
    book.count(to(ONE, 1000), after=STAY_SECONDS, seconds=STAY_SECONDS)
    book.count(to(ONE, 1), after=at("2036-05-01 12:00") - book.at)
    (use,) = book.uses().values()
    assert (use.use.used, use.is_overdue, use.spent_stages) == (1001, True, 2)
    assert book.ledger.problem == "1 budget should begin again, but the clock has jumped: it is trusted after 1 h"
    book.restart()
    book.count(to(ONE, 1), after=NOVEMBER - book.at)
    assert book.used() == {ONE: 1002}
    assert not book.uses()[ONE].is_overdue
    (begun,) = book.count(after=at("2026-12-01 00:00") - book.at)
    assert isinstance(begun, PeriodBegun)
    assert (book.used(), begun.freed) == ({}, 1)


def test_period_far_ahead_begins_once_the_clock_has_stayed_there() -> None:
    book = Book((network(MONTHLY),), is_synchronised=None)
    book.count()
    book.count(to(ONE, 1000), after=STAY_SECONDS, seconds=STAY_SECONDS)
    assert book.count(after=at("2027-05-01 12:00") - book.at) == []
    assert book.count(after=STAY_SECONDS / 2, seconds=STAY_SECONDS / 2) == []
    (begun,) = book.count(after=STAY_SECONDS / 2, seconds=STAY_SECONDS / 2)
    assert isinstance(begun, PeriodBegun)
    assert begun.period.start == at("2027-05-01 00:00")
    assert book.stages() == {}


def test_first_period_follows_a_clock_that_is_set_soon_afterwards() -> None:
    book = Book((network(MONTHLY),), at=at("2036-05-01 12:00"), is_synchronised=None)
    book.count(to(ONE, 700))
    book.count(to(ONE, 1), after=NOVEMBER - book.at)
    (use,) = book.uses().values()
    assert (use.use.used, use.period) == (701, (at("2026-11-01 00:00"), at("2026-12-01 00:00")))
    book.restart()
    (begun,) = book.count(after=at("2026-12-01 12:00") - book.at)
    assert isinstance(begun, PeriodBegun)
    assert book.used() == {}


def test_period_that_the_clock_may_not_end_is_overdue() -> None:
    book = Book((network(MONTHLY),))
    book.count(to(ONE, 10))
    book.is_synchronised, book.at = False, at("2026-12-02 00:00")
    book.count(to(ONE, 10))
    assert book.ledger.problem == "1 budget should begin again, but the clock is not synchronised"
    assert book.uses()[ONE].is_overdue
    book.is_synchronised = True
    book.count()
    assert book.ledger.problem is None


def test_client_that_has_used_nothing_has_budgets() -> None:
    book = Book((network(MONTHLY, replace(MONTHLY, per=Per.NETWORK)),))
    of_client, of_network = book.ledger.uses_of("ethernet", ONE, book.at)
    assert (of_client.subject, of_client.use.used, of_client.left) == (ONE, 0, 1000)
    assert of_network.subject is None


def test_budgets_that_differ_in_direction_are_chosen_by_it() -> None:
    down = replace(MONTHLY, counting=Counting.DOWN)
    book = Book((network(MONTHLY, down),))
    assert len(book.ledger.matching("ethernet", ONE, Choice(Every.MONTH))) == 2
    (key,) = book.ledger.matching("ethernet", ONE, Choice(counting=Counting.DOWN))
    assert key.budget == down.key


def test_use_in_a_free_window_names_it() -> None:
    free = Window(When.parse("01:00-06:00"), {}, counts=False)
    book = Book((network(MONTHLY, schedule=(free,)),), at=at("2026-11-28 05:59:50"))
    assert book.ledger.uses_of("ethernet", ONE, book.at)[0].free is free
    assert book.ledger.uses_of("ethernet", ONE, book.at + 60)[0].free is None


def test_restart_keeps_what_is_written_and_tells_nothing_again() -> None:
    book = Book((network(MONTHLY),))
    book.count(to(ONE, 800))
    book.restart()
    assert (book.stages(), book.used()) == ({ONE: 1}, {ONE: 800})
    assert book.count(to(ONE, 1)) == []
    book.restart(written=False)
    assert book.used() == {ONE: 800}
    book.at = at("2026-12-05 00:00")
    book.restart()
    (begun,) = book.count()
    assert isinstance(begun, PeriodBegun)
    assert begun.period.start == at("2026-12-01 00:00")
    book.restart()
    assert (book.used(), book.count()) == ({}, [])


def test_changed_start_finishes_the_present_period() -> None:
    book = Book((network(MONTHLY),))
    book.count(to(ONE, 100))
    book.networks = (network(replace(MONTHLY, starts=15, amount=5000)),)
    book.ledger.configure(book.networks, BERLIN, book.at)
    assert book.used() == {ONE: 100}
    book.at = at("2026-12-01 00:00")
    (begun,) = book.count()
    assert isinstance(begun, PeriodBegun)
    assert begun.period == (at("2026-12-01 00:00"), at("2026-12-15 00:00"))


def test_addition_is_used_first_and_lost_at_its_end() -> None:
    book = Book((network(MONTHLY),))
    book.count(to(ONE, 1000))
    key = book.ledger.matching("ethernet", ONE, Choice())[0]
    book.ledger.add(key, ONE, Addition(300, 300, None), book.at)
    book.ledger.add(key, ONE, Addition(200, 200, book.at + 60), book.at)
    assert (book.stages(), book.uses()[ONE].left) == ({}, 500)
    book.count(to(ONE, 150))
    assert book.uses()[ONE].additions == (Addition(200, 50, book.at + 59), Addition(300, 300, None))
    book.restart()
    book.count(after=60)
    assert book.uses()[ONE].additions == (Addition(300, 300, None),)
    assert [each.stages for each in book.count(to(ONE, 400)) if isinstance(each, LevelReached)] == [2]
    assert book.used() == {ONE: 1100}


def test_what_was_used_of_an_addition_taken_back_is_of_the_budget() -> None:
    book = Book((network(MONTHLY),))
    book.count(to(ONE, 900))
    key = book.ledger.matching("ethernet", ONE, Choice())[0]
    kept, taken = Addition(300, 300, None), Addition(200, 200, book.at + 60)
    for addition in (kept, taken):
        book.ledger.add(key, ONE, addition, book.at)
    book.count(to(ONE, 150))
    assert (book.used(), book.stages()) == ({ONE: 900}, {})
    told = book.ledger.take_back(key, ONE, taken._replace(left=50), book.at)
    assert (book.used(), book.uses()[ONE].additions) == ({ONE: 1050}, (kept,))
    assert [each.stages for each in told] == [1]
    book.restart()
    (told_of,) = book.ledger.take_back(key, ONE, kept, book.at)
    assert (told_of.stages, book.uses()[ONE].additions, book.used()) == (2, (), {ONE: 1050})
    assert book.ledger.spent["ethernet"].keys() == {ONE}


def test_rest_of_a_period_is_added_to_the_next_one_only() -> None:
    book = Book((network(replace(MONTHLY, rollover=True)),))
    book.count(to(ONE, 400), to(TWO, 1200))
    book.count(after=at("2026-12-02 00:00") - book.at)
    book.restart()
    three = ip_address("10.1.0.3")
    book.count(to(ONE, 1), to(TWO, 1), to(three, 1))
    assert {subject: use.left for subject, use in book.uses().items()} == {ONE: 1599, TWO: 999, three: 1999}
    book.count(after=at("2027-01-02 00:00") - book.at)
    book.count(to(ONE, 1))
    assert book.uses()[ONE].left == 1999


def test_window_that_does_not_count_uses_nothing() -> None:
    free = Window(When.parse("01:00-06:00"), {}, counts=False)
    book = Book((network(MONTHLY, schedule=(free,)),), at=at("2026-11-28 05:59:50"))
    book.count(to(ONE, 500))
    assert book.used() == {}
    book.count(to(ONE, 500), after=20)
    assert book.used() == {ONE: 500}


def test_reset_begins_all_budgets_of_a_network_again() -> None:
    book = Book((network(MONTHLY, replace(MONTHLY, per=Per.NETWORK)),))
    book.count(to(ONE, 2000))
    assert book.stages() == {None: 2, ONE: 2}
    assert [each.freed for each in book.ledger.reset("ethernet", Choice(), book.at)] == [1, 1]
    assert book.stages() == {}
    book.restart()
    assert book.used() == {None: 0}


def test_next_stage_is_foreseen_from_the_present_rates() -> None:
    book = Book((network(MONTHLY),))
    book.count(to(ONE, 350), to(TWO, 100))
    assert book.ledger.seconds_to_next_stage == pytest.approx(400 / 350)
    book.count(to(TWO, 100))
    assert book.ledger.seconds_to_next_stage == pytest.approx(550 / 100)


STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from([ONE, TWO]),
        st.integers(0, 400),
        st.one_of(
            st.floats(0, 40 * 86400).map(lambda seconds: (seconds, seconds)),
            st.floats(-400 * 86400, 400 * 86400).map(lambda seconds: (seconds, 1.0)),
        ),
        st.booleans(),
        st.booleans(),
    ),
    max_size=40,
)
"""Who carries how much; how far the wall clock goes, and how much time passes; whether the clock is synchronised; and
whether the daemon starts again."""


@given(st.sampled_from([Every.DAY, Every.WEEK, Every.MONTH]), st.sampled_from([1, 15, 28]), STEPS, st.booleans())
def test_no_byte_is_lost_or_counted_twice_whatever_the_clock_does(
    every: Every,
    starts: int,
    steps: Iterable[tuple[Subject, int, tuple[float, float], bool, bool]],
    is_told: bool,
) -> None:
    budget = replace(MONTHLY, every=every, starts=starts % 7 if every is Every.WEEK else starts, per=Per.CLIENT)
    book = Book((network(budget),), is_synchronised=True if is_told else None)
    expected = Counter[Subject]()
    for client, amount, (after, seconds), is_synchronised, is_restarted in steps:
        book.is_synchronised = is_synchronised if is_told else None
        told = book.count(to(client, amount), after=after, seconds=seconds)
        expected[client] += amount
        if any(isinstance(each, PeriodBegun) for each in told):
            assert book.is_synchronised is not False
            expected.clear()
            assert book.stages() == {}
        if is_restarted:
            book.restart()
        assert book.used() == {each: used for each, used in expected.items() if used}
        assert set(book.stages()) == {each for each, used in expected.items() if used >= 750}
    periods = [each.period for each in book.told if isinstance(each, PeriodBegun)]
    assert all(first.end <= second.start for first, second in pairwise(periods))


def test_budgets_that_could_not_be_read_are_added_once_they_can() -> None:
    book = Book((network(MONTHLY),))
    book.count(to(ONE, 700))
    book.write()
    ledger = Ledger(None, lambda: True)
    ledger.configure((WIFI, *book.networks), BERLIN, book.at)
    ledger.count([to(ONE, 100), to(TWO, 5)], book.at, 1.0)
    assert ledger.is_unread
    ledger.adopt(read_accounts(book.database)[0], book.at)
    assert not ledger.is_unread
    book.ledger = ledger
    assert book.used() == {ONE: 800, TWO: 5}
    book.restart()
    assert (book.used(), book.stages()) == ({ONE: 800, TWO: 5}, {ONE: 1})


def test_rows_that_cannot_be_decoded_are_left_out() -> None:
    book = Book((network(MONTHLY),))
    book.count(to(ONE, 700), to(TWO, 5))
    book.write()
    book.database.execute("UPDATE budget_uses SET used = 'much' WHERE subject = ?", (str(TWO),))
    book.database.execute("INSERT INTO budget_additions VALUES ('ethernet', ?, '10.1.0.3', '[1]')", (MONTHLY.key,))
    book.database.execute("INSERT INTO budget_periods VALUES ('lte', 'a', NULL, 'b', 0, 0)")
    assert read_accounts(book.database)[1] == 3
    book.restart(written=False)
    assert book.used() == {ONE: 700}


def test_budget_that_is_removed_and_added_again_keeps_what_was_not_written() -> None:
    book = Book((network(MONTHLY),))
    book.count(to(ONE, 700))
    for networks in ((network(),), (network(MONTHLY),)):
        book.networks = networks
        book.ledger.configure((WIFI, *networks), BERLIN, book.at)
    assert (book.used(), book.stages()) == ({ONE: 700}, {})
    book.restart()
    assert book.used() == {ONE: 700}


def test_first_period_by_a_wrong_clock_is_replaced_when_the_clock_is_right() -> None:
    book = Book((network(MONTHLY),), at=at("2036-05-01 00:00"), is_synchronised=False)
    book.count(to(ONE, 700))
    book.restart()
    book.at, book.is_synchronised = NOVEMBER, True
    assert book.count(to(ONE, 10)) == []
    assert book.uses()[ONE].period == (at("2026-11-01 00:00"), at("2026-12-01 00:00"))
    book.restart()
    assert book.used() == {ONE: 710}


def test_rest_is_not_added_after_a_reset_or_before_rollover_was_set() -> None:
    rolling = replace(MONTHLY, rollover=True)
    book = Book((network(rolling),))
    book.count(to(ONE, 1000))
    book.count(after=at("2026-12-02 00:00") - book.at)
    book.count(to(ONE, 1200))
    book.ledger.reset("ethernet", Choice(), book.at)
    book.count(to(ONE, 1))
    assert book.uses()[ONE].left == 999
    book = Book((network(MONTHLY),))
    book.count(to(ONE, 1000))
    book.count(after=at("2026-12-02 00:00") - book.at)
    book.ledger.configure((WIFI, network(rolling)), BERLIN, book.at)
    book.count(to(ONE, 1))
    assert book.uses()[ONE].left == 999


@pytest.mark.parametrize("used", [0, 30])
def test_rest_is_added_beside_what_is_left_of_an_addition(used: int) -> None:
    book = Book((network(replace(MONTHLY, rollover=True)),))
    (key,) = book.ledger.matching("ethernet", ONE, Choice())
    book.ledger.add(key, ONE, Addition(100, 100, None), book.at)
    book.count(to(ONE, used))
    book.count(after=at("2026-12-02 00:00") - book.at)
    book.count(to(ONE, 1))
    # The new amount, that of November, and the rest of the addition.
    assert book.uses()[ONE].left == 1000 + 1000 + 100 - used - 1


def test_rest_of_a_period_before_the_last_one_is_not_added() -> None:
    book = Book((network(replace(MONTHLY, rollover=True)),))
    book.count(to(ONE, 400))
    book.count(to(ONE, 1), after=at("2027-03-02 00:00") - book.at)
    book.count(to(ONE, 1))
    assert book.uses()[ONE].left == 999


def test_stage_that_a_changed_amount_reaches_is_reported() -> None:
    book = Book((network(MONTHLY),))
    book.count(to(ONE, 700))
    told = book.ledger.configure((WIFI, network(replace(MONTHLY, amount=700))), BERLIN, book.at)
    assert [level.stages for level in told] == [2]
    assert book.stages() == {ONE: 2}


def test_clients_beyond_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAX_CLIENTS", 1)
    book = Book((network(MONTHLY),))
    book.count(to(ONE, 10), to(TWO, 2000), to(ip_address("10.1.0.3"), 3))
    assert (book.used(), book.stages()) == ({ONE: 10, None: 2003}, {})
