"""Budgets that several proxies share: what the ledger tells of its own use, and what it makes of that of others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from threading import Thread

import pytest
from loops import snapshot_of
from test_ledger import BERLIN, MONTHLY, NOVEMBER, ONE, TWO, at, network, to

from mptcp_throttle.errors import UserError
from mptcp_throttle.model import AccessNetwork, Per
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.ledger import Carried, Choice, Ledger
from mptcp_throttled.accounting.sharing import PORTION
from mptcp_throttled.answers.budgets import Owner, describe_use, set_used
from mptcp_throttled.fleet.keys import field_of
from mptcp_throttled.vocabulary.budgets import AccountKey, LevelReached, Subject
from mptcp_throttled.vocabulary.clock import Clock
from mptcp_throttled.vocabulary.fleet import Elsewhere, OwnTotal, Scope, UsedElsewhere

KEY = AccountKey("ethernet", MONTHLY.key)
BEGIN = at("2026-11-01 00:00")


def ledger_of(*networks: AccessNetwork, is_synchronised: bool = True) -> Ledger:
    made = Ledger({}, lambda: is_synchronised, is_shared=True)
    made.configure(networks or (network(MONTHLY),), BERLIN, NOVEMBER)
    return made


def count(ledger: Ledger, *carried: Carried, now: float = NOVEMBER + 1) -> None:
    ledger.count(carried, now, 1.0)


def elsewhere(used: int, rate: float = 0.0, subject: Subject = ONE, start: float = BEGIN) -> list[UsedElsewhere]:
    return [UsedElsewhere(KEY, subject, start, Elsewhere(used, rate))]


def told_to_others(ledger: Ledger, scope: Scope = Scope.CHANGED) -> dict[Subject, int]:
    return {total.subject: total.used for total in told(ledger, scope)}


def told(ledger: Ledger, scope: Scope = Scope.CHANGED) -> list[OwnTotal]:
    return [total for portion in ledger.own_totals(scope) for total in portion]


def test_totals_are_told_as_they_change_and_all_when_asked() -> None:
    ledger = ledger_of()
    count(ledger, to(ONE, 100), to(TWO, 50))
    assert told_to_others(ledger) == {ONE: 100, TWO: 50}
    assert told_to_others(ledger) == {}
    count(ledger, to(ONE, 1))
    assert told_to_others(ledger, Scope.ALL) == {ONE: 101, TWO: 50}
    assert told_to_others(ledger) == {ONE: 101}
    assert told_to_others(ledger, Scope.ALL) == {ONE: 101, TWO: 50}


def test_time_until_a_stage_counts_what_is_carried_elsewhere() -> None:
    ledger = ledger_of()
    ledger.note_elsewhere(elsewhere(600, rate=40.0), NOVEMBER)
    count(ledger, to(ONE, 10))
    (total,) = told(ledger)
    assert total.seconds == pytest.approx((750 - 610) / (10 + 40))
    assert ledger.seconds_to_next_stage == total.seconds


def test_stage_is_reached_by_what_was_used_at_all_proxies() -> None:
    ledger = ledger_of()
    count(ledger, to(ONE, 300))
    told, _ = ledger.note_elsewhere(elsewhere(500), NOVEMBER + 2)
    assert [(level.use.used, level.stages) for level in told if isinstance(level, LevelReached)] == [(800, 1)]
    assert [reached.stages for reached in ledger.spent["ethernet"][ONE]] == [1]
    (use,) = ledger.uses(NOVEMBER + 2)
    assert (use.use.used, use.elsewhere, use.left, use.spent_stages) == (800, Elsewhere(500), 200, 1)
    told, _ = ledger.note_elsewhere(elsewhere(700), NOVEMBER + 3)
    assert [level.stages for level in told] == [2]
    # A total that has become lower, as after `budget reset` at another proxy, frees.
    ledger.note_elsewhere(elsewhere(100), NOVEMBER + 4)
    assert ledger.spent.get("ethernet", {}) == {}


def test_programs_are_told_of_what_is_used_elsewhere_near_a_stage() -> None:
    ledger = ledger_of()
    count(ledger, to(ONE, 100))
    assert ledger.note_elsewhere(elsewhere(300, rate=10.0), NOVEMBER)[1] is False
    assert ledger.note_elsewhere(elsewhere(600, rate=10.0), NOVEMBER)[1] is True
    (ahead,) = ledger.stages_ahead({}, NOVEMBER)
    assert ahead.left == 50


def test_totals_are_not_those_of_this_proxy_when_written() -> None:
    ledger = ledger_of()
    count(ledger, to(ONE, 100))
    ledger.note_elsewhere(elsewhere(500), NOVEMBER)
    assert [use.used for use in ledger.changes().uses[KEY].values()] == [100]
    assert [total.used for total in ledger.totals()] == [100]


def restarted(history: History, ledger: Ledger, now: float) -> Ledger:
    """The next instance, once all of a ledger is written."""
    assert history.flush(now, now, {}, ledger.changes())
    ledger.written()
    later = Ledger(history.budgets(), lambda: True, is_shared=True)
    later.configure((network(MONTHLY),), BERLIN, now)
    return later


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path / "history.sqlite", "boot")
    yield made
    made.close()


def test_restarted_proxy_knows_what_was_used_elsewhere(history: History) -> None:
    ledger = ledger_of()
    count(ledger, to(ONE, 100))
    ledger.note_elsewhere(elsewhere(700), NOVEMBER + 2)
    ledger.note_elsewhere(elsewhere(800, subject=TWO), NOVEMBER + 3)
    later = restarted(history, ledger, NOVEMBER + 4)
    assert {use.subject: (use.use.used, use.elsewhere) for use in later.uses(NOVEMBER + 5)} == {
        ONE: (800, Elsewhere(700))
    }
    count(later, now=NOVEMBER + 5)
    assert [reached.stages for reached in later.spent["ethernet"][ONE]] == [1]
    assert [reached.stages for reached in later.spent["ethernet"][TWO]] == [1]
    assert history.read_at == NOVEMBER + 3
    # It is still known after what was read is written again, as another instance reads nothing.
    later.reset("ethernet", Choice(), NOVEMBER + 6)
    last = restarted(history, later, NOVEMBER + 7)
    assert last.used_elsewhere(KEY, TWO) == 800
    assert history.read_at == NOVEMBER + 3


def test_what_was_used_elsewhere_before_a_restart_was_not_used_lately(history: History) -> None:
    ledger = ledger_of()
    count(ledger, to(ONE, 100))
    ledger.note_elsewhere(elsewhere(200), NOVEMBER + 2)
    later = restarted(history, ledger, NOVEMBER + 3)
    later.note_elsewhere(elsewhere(700), NOVEMBER + 4)
    later.count((), NOVEMBER + 4000, 4000.0)
    (use,) = later.uses(NOVEMBER + 4000)
    assert (use.use.used, use.recent_rate) == (800, 0.0)


def test_period_that_has_ended_meanwhile_has_nothing_of_other_proxies(history: History) -> None:
    ledger = ledger_of()
    count(ledger, to(ONE, 100))
    ledger.note_elsewhere(elsewhere(900), NOVEMBER + 2)
    december = at("2026-12-01 00:00")
    later = restarted(history, ledger, december + 1)
    for step in range(3):
        count(later, now=december + 2 + step)
    assert later.spent == {}
    assert restarted(history, later, december + 9).used_elsewhere(KEY, ONE) == 0


def test_period_begins_without_what_was_used_elsewhere_in_the_last() -> None:
    ledger = ledger_of()
    count(ledger, to(ONE, 100))
    ledger.note_elsewhere(elsewhere(900), NOVEMBER)
    december = at("2026-12-01 00:00")
    for step in range(3):
        count(ledger, now=december + step)
    assert ledger.spent == {}
    assert told_to_others(ledger, Scope.ALL) == {}
    ledger.note_elsewhere(elsewhere(900), december + 4)
    assert ledger.spent == {}
    count(ledger, to(ONE, 7), now=december + 5)
    (total,) = told(ledger)
    assert (total.used, total.period.start) == (7, december)


def test_reset_tells_that_nothing_is_used_here() -> None:
    ledger = ledger_of()
    count(ledger, to(ONE, 100))
    told_to_others(ledger)
    ledger.set_used(KEY, ONE, 0, NOVEMBER)
    assert told_to_others(ledger) == {ONE: 0}
    count(ledger, to(ONE, 100))
    told_to_others(ledger)
    ledger.note_elsewhere(elsewhere(20), NOVEMBER)
    ledger.reset("ethernet", Choice(), NOVEMBER)
    assert told_to_others(ledger) == {ONE: 0}
    (use,) = ledger.uses_of("ethernet", ONE, NOVEMBER)
    assert use.use.used == 20


def test_reset_to_another_period_takes_nothing_over_from_other_proxies() -> None:
    ledger = ledger_of()
    ledger.note_elsewhere(elsewhere(900), NOVEMBER)
    ledger.configure((network(replace(MONTHLY, starts=15)),), BERLIN, NOVEMBER)
    ledger.reset("ethernet", Choice(), NOVEMBER)
    count(ledger, to(ONE, 1))
    assert ledger.spent == {}
    (use,) = ledger.uses(NOVEMBER)
    assert (use.period.start, use.use.used) == (at("2026-11-15 00:00"), 1)


def test_what_was_reset_is_told_with_every_total_of_the_period() -> None:
    """Other proxies believe what they knew before, also if their server has lost both totals."""
    ledger = ledger_of()
    count(ledger, to(ONE, 100), to(TWO, 50))
    ledger.reset("ethernet", Choice(), NOVEMBER)
    told_to_others(ledger)
    count(ledger, to(TWO, 7))
    assert told_to_others(ledger, Scope.ALL) == {ONE: 0, TWO: 7}
    for step in range(3):
        count(ledger, now=at("2026-12-01 00:00") + step)
    assert told_to_others(ledger, Scope.ALL) == {}


def many(clients: int) -> list[Carried]:
    return [to(ip_address(f"10.1.{number >> 8}.{number & 255}"), 1) for number in range(clients)]


def test_totals_of_a_period_that_ends_meanwhile_are_not_told() -> None:
    ledger = ledger_of()
    count(ledger, *many(2 * PORTION))
    portions = ledger.own_totals(Scope.ALL)
    assert len(next(portions)) == PORTION
    count(ledger, *many(2 * PORTION))
    assert {total.used for total in next(portions)} == {2}
    portions = ledger.own_totals(Scope.ALL)
    assert len(next(portions)) == PORTION
    for step in range(3):
        count(ledger, now=at("2026-12-01 00:00") + step)
    assert next(portions, None) is None


def test_rollover_and_rolling_budgets_are_not_shared() -> None:
    for budget in (replace(MONTHLY, rollover=True), replace(MONTHLY, rolling=True)):
        ledger = ledger_of(network(budget))
        count(ledger, to(ONE, 100))
        used = UsedElsewhere(AccountKey("ethernet", budget.key), ONE, BEGIN, Elsewhere(900))
        ledger.note_elsewhere([used], NOVEMBER)
        assert told_to_others(ledger, Scope.ALL) == {}
        (use,) = ledger.uses(NOVEMBER)
        assert (use.use.used, use.elsewhere) == (100, None)


def test_total_of_a_network_is_shared() -> None:
    budget = replace(MONTHLY, per=Per.NETWORK)
    ledger = ledger_of(network(budget))
    count(ledger, to(ONE, 100), to(TWO, 50))
    assert told_to_others(ledger) == {None: 150}
    ledger.note_elsewhere([UsedElsewhere(AccountKey("ethernet", budget.key), None, BEGIN, Elsewhere(700))], NOVEMBER)
    assert [reached.stages for reached in ledger.spent["ethernet"][None]] == [1]


def test_nothing_is_told_while_the_clock_is_not_synchronised() -> None:
    ledger = ledger_of(is_synchronised=False)
    count(ledger, to(ONE, 100))
    assert told_to_others(ledger, Scope.ALL) == {}


def test_totals_are_told_where_nothing_synchronises_the_clock() -> None:
    ledger = Ledger({}, None, is_shared=True)
    ledger.configure((network(MONTHLY),), BERLIN, NOVEMBER)
    count(ledger, to(ONE, 100))
    assert told_to_others(ledger) == {ONE: 100}


def test_ledger_of_a_proxy_alone_keeps_nothing_for_others() -> None:
    ledger = Ledger({}, lambda: True)
    ledger.configure((network(MONTHLY),), BERLIN, NOVEMBER)
    count(ledger, to(ONE, 100))
    assert told_to_others(ledger, Scope.ALL) == {}
    (use,) = ledger.uses(NOVEMBER)
    assert use.elsewhere is None


def test_what_is_far_from_a_stage_is_told_with_all_that_has_changed() -> None:
    ledger = ledger_of(network(replace(MONTHLY, amount=10**12)))
    count(ledger, to(ONE, 100), to(TWO, 50))
    assert told_to_others(ledger, Scope.URGENT) == {ONE: 100, TWO: 50}
    assert told_to_others(ledger, Scope.CHANGED) == {}
    count(ledger, to(ONE, 100))
    assert told_to_others(ledger, Scope.URGENT) == {}
    assert told_to_others(ledger, Scope.CHANGED) == {ONE: 200}
    count(ledger, to(ONE, 100), to(TWO, 50))
    assert told_to_others(ledger, Scope.URGENT) == {}
    assert told_to_others(ledger, Scope.CHANGED) == {ONE: 300, TWO: 100}
    count(ledger, to(ONE, 10**11))
    assert told_to_others(ledger, Scope.URGENT) == {ONE: 10**11 + 300}


def test_what_was_not_told_for_two_rounds_is_told_at_once() -> None:
    ledger = ledger_of(network(replace(MONTHLY, amount=10**12)))
    count(ledger, to(ONE, 100))
    assert told_to_others(ledger, Scope.URGENT) == {ONE: 100}
    for _ in range(3):
        assert told_to_others(ledger, Scope.CHANGED) == {}
    count(ledger, to(ONE, 100))
    assert told_to_others(ledger, Scope.URGENT) == {ONE: 200}


def test_use_set_by_hand_is_told_at_once() -> None:
    ledger = ledger_of()
    ledger.set_used(KEY, ONE, 740, NOVEMBER)
    assert told_to_others(ledger, Scope.URGENT) == {ONE: 740}


@pytest.fixture
def accounts(tmp_path: Path) -> Iterator[Accounts]:
    history = History(tmp_path / "history.sqlite", "boot")
    yield Accounts(history, ledger_of(), Clock())
    history.close()


def test_other_threads_have_their_turn_while_many_totals_are_told(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts.change_budgets(lambda ledger, now: ledger.count(many(PORTION + 1), now, 1.0))
    turns = []

    def take_turn(_: float) -> None:
        other = Thread(target=accounts.budget_totals)
        other.start()
        other.join(10.0)
        turns.append(not other.is_alive())

    monkeypatch.setattr(time, "sleep", take_turn)
    assert len(accounts.own_totals(Scope.ALL)) == PORTION + 1
    assert turns == [True]


def test_use_set_by_hand_includes_what_other_proxies_have_counted(accounts: Accounts) -> None:
    start = accounts.budget_uses_of("ethernet", ONE)[0].period.start
    accounts.note_elsewhere(elsewhere(300_000_000, start=start))
    owner = Owner("10.1.0.1", {"ethernet": ONE})
    with pytest.raises(UserError, match="not written"):
        set_used(accounts, owner, Choice(), 500_000_000)
    (use,) = accounts.budget_uses_of("ethernet", ONE)
    assert (use.use.used, use.elsewhere) == (500_000_000, Elsewhere(300_000_000))
    with pytest.raises(UserError, match="amount: 200 MB: other proxies have counted 300 MB; allowed: that or more"):
        set_used(accounts, owner, Choice(), 200_000_000)


def test_answer_has_the_part_of_each_proxy(accounts: Accounts, tmp_path: Path) -> None:
    (before,) = accounts.budget_uses_of("ethernet", ONE)
    parts = (("proxy-2", 400), ("proxy-1", 50), ("proxy-3", 0))
    used = Elsewhere(450, 0.0, tuple((field_of(name, "0000000a"), part) for name, part in parts))
    accounts.note_elsewhere([UsedElsewhere(KEY, ONE, before.period.start, used)])
    (use,) = accounts.budget_uses_of("ethernet", ONE)
    answer = describe_use(use._replace(use=use.use._replace(used=750)), snapshot_of(tmp_path), "proxy-1")
    # Of this proxy, both what its ledger has, and what one has that it has lost.
    assert answer["used_by_proxy"] == [{"name": "proxy-2", "used": 400}, {"name": "proxy-1", "used": 350}]
    assert answer["used_elsewhere"] == 450
    alone = describe_use(before._replace(elsewhere=None), snapshot_of(tmp_path))
    assert (alone["used_elsewhere"], alone["used_by_proxy"]) == (None, None)


def test_identifier_of_the_ledger_stays_with_its_database(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    history = History(path, "boot")
    history.flush(0.0, 0.0, {})
    first = history.ledger()
    # As after a kill: nothing is written at the end.
    history.close()
    again = History(path, "boot")
    assert again.ledger() == first
    again.close()
    path.unlink()
    other = History(path, "boot")
    assert other.ledger() not in (first, None)
    other.close()
