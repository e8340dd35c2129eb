"""A proxy of a fleet that is restarted, with a ledger and a database of its own: what it still knows of the others."""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_ledger import BERLIN, MONTHLY, NOVEMBER, ONE, network, to
from test_shared_budgets import BEGIN, KEY
from test_totals_thread import LINK, ModelExchange, Server

from mptcp_throttle.periods import Period
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.ledger import Ledger
from mptcp_throttled.accounting.ledger_rows import LedgerChanges, StoredPeriod
from mptcp_throttled.fleet import totals_thread
from mptcp_throttled.fleet.keys import field_of, name_of
from mptcp_throttled.fleet.refusals import Refusals
from mptcp_throttled.fleet.totals import LOWER_SECONDS
from mptcp_throttled.fleet.totals_thread import TICK_SECONDS, Identity, TotalsThread
from mptcp_throttled.vocabulary.fleet import Elsewhere, OwnTotal, Scope, UsedElsewhere

HASH = name_of(OwnTotal(KEY, ONE, Period(BEGIN, BEGIN + 1), 0, 0.0), None)
OWN = field_of("proxy-1", "00000001")
OTHER, LOST = field_of("proxy-2", "0000000a"), field_of("proxy-2", "0000000b")


class Proxy:
    """One whose database is `history`, and whose thread is stepped by the test."""

    def __init__(self, model: Server, history: History) -> None:
        self._history = history
        self._model = model
        self.now = 1000.0
        self.start()

    def start(self) -> None:
        self.ledger = Ledger(self._history.budgets(), lambda: True, is_shared=True)
        self.ledger.configure((network(MONTHLY),), BERLIN, NOVEMBER)

        def connect(field: str, _: int) -> ModelExchange:
            return ModelExchange(self._model, field)

        def ignore(_: object) -> None:
            pass

        self.thread = TotalsThread("proxy-1", LINK, self, lambda: Identity(OWN, None), connect, Refusals(), ignore)

    def restart(self) -> None:
        assert self._history.flush(NOVEMBER, self.now, {}, self.ledger.changes())
        self.start()

    def own_totals(self, scope: Scope) -> list[OwnTotal]:
        return [total for portion in self.ledger.own_totals(scope) for total in portion]

    def note_elsewhere(self, used: Sequence[UsedElsewhere]) -> None:
        self.ledger.note_elsewhere(used, NOVEMBER)

    def carry(self, seconds: float) -> int:
        """Let the client carry a byte in each tick; what it has then used elsewhere."""
        for _ in range(int(seconds / TICK_SECONDS)):
            self.now += TICK_SECONDS
            self.ledger.count([to(ONE, 1)], NOVEMBER, TICK_SECONDS)
            self.thread.step(self.now)
        return self.ledger.used_elsewhere(KEY, ONE)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path / "history.sqlite", "boot")
    yield made
    made.close()


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(totals_thread, "time", SimpleNamespace(time=lambda: NOVEMBER, monotonic=lambda: 0.0))
    return Server({HASH: {OTHER: 400, LOST: 300}})


@pytest.fixture
def proxy(model: Server, history: History) -> Proxy:
    made = Proxy(model, history)
    assert made.carry(5.0) == 700
    return made


def test_lost_total_of_a_lost_ledger_counts_after_a_restart(model: Server, proxy: Proxy) -> None:
    for _ in range(2):
        proxy.restart()
        model.hashes = {HASH: {OTHER: 410}}
        assert proxy.carry(20.0) == 710
    # Nothing of it is published: it would count as this proxy's.
    assert model.hashes[HASH].keys() == {OTHER, OWN}


def test_lost_total_counts_after_a_restart_until_a_lower_one_stays(model: Server, proxy: Proxy) -> None:
    model.hashes.clear()
    proxy.restart()
    assert proxy.carry(5.0) == 700
    model.hashes[HASH][LOST] = 100
    assert proxy.carry(LOWER_SECONDS - 2.0) == 700
    assert proxy.carry(5.0) == 500


def test_what_others_have_counted_during_a_restart_is_believed_at_once(model: Server, proxy: Proxy) -> None:
    proxy.restart()
    model.hashes[HASH][OTHER] = 10**6 * int(LINK)
    assert proxy.carry(TICK_SECONDS) == 10**6 * int(LINK) + 300
    # Both together carry what the link does since the period began, and no more.
    model.hashes[HASH][OTHER] = 10**17
    most = (NOVEMBER - BEGIN + 5.0) * LINK
    assert proxy.carry(5.0) <= most + 300


def test_table_of_an_earlier_version_has_the_sum_alone(tmp_path: Path) -> None:
    path = tmp_path / "earlier.sqlite"
    with sqlite3.connect(path) as earlier:
        earlier.execute(
            "CREATE TABLE budget_elsewhere (network TEXT, budget TEXT, subject TEXT, used INTEGER,"
            " PRIMARY KEY (network, budget, subject)) WITHOUT ROWID"
        )
        earlier.execute("INSERT INTO budget_elsewhere VALUES (?, ?, ?, 700)", (*KEY, str(ONE)))
    later = Elsewhere(400, by_field=((OTHER, 400),))
    periods = {KEY: StoredPeriod(Period(BEGIN, BEGIN + 1))}
    for elsewhere in (Elsewhere(700), later):
        history = History(path, "boot")
        assert history.flush(0.0, 0.0, {}, LedgerChanges(periods, elsewhere={KEY: {ONE: elsewhere}}))
        stored = history.budgets()
        assert stored is not None
        assert stored[KEY].elsewhere == {ONE: elsewhere}
        history.close()


def test_database_has_a_bounded_number_of_fields_and_the_sum_of_all(history: History) -> None:
    by_field = tuple((field_of("false", f"{number:08x}"), number) for number in range(100))
    changes = LedgerChanges(
        {KEY: StoredPeriod(Period(BEGIN, BEGIN + 1))}, elsewhere={KEY: {ONE: Elsewhere(4950, 0.0, by_field)}}
    )
    assert history.flush(0.0, 0.0, {}, changes)
    stored = history.budgets()
    assert stored is not None
    assert stored[KEY].elsewhere == {ONE: Elsewhere(4950, 0.0, by_field[:83:-1])}


@pytest.mark.parametrize(
    "text", ["{", "7", "[7]", '[["a"]]', '[["Proxy", 7]]', "[[7, 7]]", '[["p.00000000", -7]]', '[["p.00000000", "7"]]']
)
def test_row_that_is_damaged_counts_for_nothing(history: History, text: str, caplog: pytest.LogCaptureFixture) -> None:
    changes = LedgerChanges(
        {KEY: StoredPeriod(Period(BEGIN, BEGIN + 1))}, elsewhere={KEY: {ONE: Elsewhere(7, 0.0, ((OTHER, 7),))}}
    )
    assert history.flush(0.0, 0.0, {}, changes)
    history._select("UPDATE budget_elsewhere SET by_field = ?", (text,))
    stored = history.budgets()
    assert stored is not None
    assert stored[KEY].elsewhere == {}
    assert "1 rows of budgets cannot be used" in caplog.text
