"""The accounts of networks and clients: what subflows have carried, and for how long they were held back."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples import capped, client
from loops import snapshot_of
from worlds import ManualClock

from mptcp_throttle.model import FourTuple, Token
from mptcp_throttled.accounting.accounts import SETTLE_SECONDS, Accounts
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.history_rows import Account, Kind
from mptcp_throttled.accounting.ledger import Ledger
from mptcp_throttled.vocabulary.observation import SocketState
from mptcp_throttled.vocabulary.traffic import ClosedSubflow, SocketTotals, SteeredTotals, Traffic


def carried(*subflows: FourTuple, sent: int) -> dict[FourTuple, SocketState]:
    """Sockets with these subflows, each of which has sent as much."""
    return {ends: SocketState(0, None, SocketTotals(sent), cookie=n) for n, ends in enumerate(subflows, start=1)}


def test_accounts_have_what_was_throttled_and_held_back(tmp_path: Path) -> None:
    snapshot, clock = snapshot_of(tmp_path, client(1), client(2)), ManualClock()
    assert capped(1) in snapshot.throttled
    history = History(tmp_path / "history.sqlite", "boot")
    accounts = Accounts(history, Ledger({}, lambda: True), clock)
    held = {capped(1): SteeredTotals(2, 40), capped(2): SteeredTotals(2, 7)}
    for sent, steered in ((0, {}), (1000, held)):
        accounts.observe(carried(capped(1), capped(2), sent=sent), snapshot, steered)
    totals = SocketTotals(1500, steered=SteeredTotals(3, 100))
    accounts.note_closed([ClosedSubflow(Token(1), capped(1), 1, totals)])
    accounts.observe(carried(capped(2), sent=1000), snapshot, held)
    accounts.flush()

    def counts(traffic: Traffic) -> tuple[int, int]:
        return traffic.ip_sent_throttled, traffic.held_back_ms

    assert counts(accounts.networks["ethernet"].traffic) == (2500, 107)
    of_clients = [
        [counts(period.traffic) for period in history.read(Account(Kind.CLIENT, address), 3600, 0)]
        for address in ("10.1.0.1", "10.1.0.2")
    ]
    assert of_clients == [[(1500, 100)], [(1000, 7)]]


class Unreadable:
    """A database that cannot be opened until it is `restored`."""

    def __init__(self, path: Path) -> None:
        self._path, self._aside = path, path.with_suffix(".aside")
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        path.rename(self._aside)
        path.mkdir()

    def restore(self) -> None:
        self._path.rmdir()
        self._aside.rename(self._path)


@pytest.mark.parametrize("is_closed", [False, True])
def test_database_that_is_unreadable_at_the_start_loses_nothing(tmp_path: Path, is_closed: bool) -> None:
    snapshot, clock, path = snapshot_of(tmp_path, client(1), client(2)), ManualClock(), tmp_path / "history.sqlite"
    before = Accounts(History(path, "boot"), Ledger({}, lambda: True), clock)
    for sent in (0, 1000):
        before.observe(carried(capped(1), sent=sent), snapshot, {})
    before.close()
    database = Unreadable(path)
    accounts = Accounts(History(path, "boot"), Ledger(None, lambda: True), clock)
    # The second socket has opened while no daemon ran.
    accounts.observe(carried(capped(1), capped(2), sent=1500), snapshot, {})
    accounts.observe(carried(capped(1), capped(2), sent=1700), snapshot, {})
    assert accounts.networks["ethernet"].traffic.sent == 400
    assert not accounts.flush()
    live = carried(capped(1), capped(2), sent=1800)
    if is_closed:
        accounts.note_closed([ClosedSubflow(Token(2), capped(2), 2, SocketTotals(1800))])
        del live[capped(2)]
    accounts.observe(live, snapshot, {})
    database.restore()
    clock.now += 1
    accounts.observe(live, snapshot, {})
    accounts.observe(live, snapshot, {})
    assert accounts.networks["ethernet"].traffic.sent == 800 + 1800
    assert accounts.flush()


def test_database_that_stays_unreadable_is_not_waited_for(tmp_path: Path) -> None:
    snapshot, clock, path = snapshot_of(tmp_path, client(1)), ManualClock(), tmp_path / "history.sqlite"
    path.mkdir()
    accounts = Accounts(History(path, "boot"), Ledger(None, lambda: True), clock)
    accounts.observe(carried(capped(1), sent=1500), snapshot, {})
    clock.now += SETTLE_SECONDS
    accounts.note_closed([ClosedSubflow(Token(1), capped(1), 1, SocketTotals(1700))])
    accounts.observe({}, snapshot, {})
    assert accounts.networks["ethernet"].traffic.sent == 200
    path.rmdir()
    accounts.observe({}, snapshot, {})
    assert accounts.flush()
