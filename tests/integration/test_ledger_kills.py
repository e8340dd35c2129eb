"""Budgets of a daemon that is killed again and again: what its sockets carry is used once."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from examples import ETHERNET, WIFI, capped, client
from loops import snapshot_of
from polling import eventually
from worlds import ManualClock

from mptcp_throttle.model import Budget, Counting, Every, Per, RateKind, Stage
from mptcp_throttle.units import Rate
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.ledger import Ledger
from mptcp_throttled.vocabulary.observation import SocketState
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.traffic import SocketTotals

KILLS: Final = 200
BUDGET: Final = Budget(
    10**12, Per.NETWORK, Counting.DOWN, Every.MONTH, 1, None, (Stage(1.0, {RateKind.CAP: Rate.parse("256kbit")}),)
)


def accounts_at(path: Path, snapshot: Snapshot, clock: ManualClock) -> Accounts:
    history = History(path, "boot")
    ledger = Ledger(history.budgets(), lambda: True)
    ledger.configure(snapshot.networks, None, clock.time())
    return Accounts(history, ledger, clock)


def look(accounts: Accounts, snapshot: Snapshot, sent: ctypes.c_uint64) -> None:
    totals = SocketTotals(sent.value)
    accounts.observe({capped(1): SocketState(0, None, totals, cookie=7)}, snapshot, {})


def count_until_killed(path: Path, snapshot: Snapshot, sent: ctypes.c_uint64) -> None:
    """Carry and count, about a second of the clock each time."""
    clock = ManualClock()
    accounts = accounts_at(path, snapshot, clock)
    while True:
        sent.value += random.randrange(10**6)  # noqa: S311
        look(accounts, snapshot, sent)
        clock.now += random.uniform(0.5, 2)  # noqa: S311


def test_daemon_killed_200_times_uses_each_byte_once(tmp_path: Path) -> None:
    networks = (WIFI, replace(ETHERNET, budgets=(BUDGET,)))
    snapshot = replace(snapshot_of(tmp_path, client(1)), networks=networks)
    # It is stored at once, unlike by `struct`, which clears the place first: a kill must not leave a part of a number.
    sent = ctypes.c_uint64.from_buffer(mmap.mmap(-1, ctypes.sizeof(ctypes.c_uint64)))
    path = tmp_path / "history.sqlite"
    # The first instance has seen the socket without any byte: what is there before does not count.
    first = accounts_at(path, snapshot, ManualClock())
    look(first, snapshot, sent)
    first.close()
    for kill in range(KILLS):
        before, pid = sent.value, os.fork()
        if pid == 0:
            try:
                count_until_killed(path, snapshot, sent)
            finally:
                os._exit(1)
        try:
            # On a busy machine a process may need longer than this to begin: every second one has carried something.
            if kill % 2:
                eventually(lambda: sent.value > before + 3 * 10**6, "counting")  # noqa: B023
            time.sleep(random.uniform(0.001, 0.03))  # noqa: S311
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    last = accounts_at(path, snapshot, ManualClock())
    look(last, snapshot, sent)
    (use,) = last.budget_uses()
    last.close()
    total = sent.value
    assert total > KILLS * 10**6
    assert use.use.used == total
