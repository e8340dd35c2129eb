"""The accounts of networks and clients: what subflows have carried, and for how long they were held back."""

from __future__ import annotations

from pathlib import Path

from examples import capped, client
from loops import snapshot_of
from worlds import ManualClock

from mptcp_throttle.model import FourTuple, Token
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.history import Account, History, Kind
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
        accounts.look(carried(capped(1), capped(2), sent=sent), snapshot, steered)
    totals = SocketTotals(1500, steered=SteeredTotals(3, 100))
    accounts.note_closed([ClosedSubflow(Token(1), capped(1), 1, totals)])
    accounts.look(carried(capped(2), sent=1000), snapshot, held)
    accounts.flush()

    def counts(traffic: Traffic) -> tuple[int, int]:
        return traffic.ip_sent_throttled, traffic.held_back_ms

    assert counts(accounts.networks["ethernet"].traffic) == (2500, 107)
    of_clients = [
        [counts(period.traffic) for period in history.read(Account(Kind.CLIENT, address), 3600, 0)]
        for address in ("10.1.0.1", "10.1.0.2")
    ]
    assert of_clients == [[(1500, 100)], [(1000, 7)]]
