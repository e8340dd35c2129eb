"""What this proxy is to the others of its fleet, and what is said while that is not known."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mptcp_throttle.config.fleet_section import FleetSection
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.ledger import Ledger
from mptcp_throttled.accounting.ledger_rows import LedgerChanges
from mptcp_throttled.fleet.exchange import ExchangeError
from mptcp_throttled.fleet.refusals import Refusals
from mptcp_throttled.fleet.totals_thread import TotalsThread
from mptcp_throttled.lifecycle.fleet_member import fleet_member
from mptcp_throttled.vocabulary.budgets import AccountKey, Subject
from mptcp_throttled.vocabulary.clock import Clock
from mptcp_throttled.vocabulary.fleet import Elsewhere, Load


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path / "history.sqlite", "boot")
    yield made
    made.close()


def member(history: History, **settings: object) -> TotalsThread:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    section = FleetSection.model_validate({"url": f"valkey://127.0.0.1:{port}", "name": "proxy-1", **settings})
    assert section.url is not None
    accounts = Accounts(history, Ledger({}, None, is_shared=True), Clock())
    return fleet_member(section, section.url, accounts, history, Refusals(), lambda _: None, Load)


def test_key_file_that_cannot_be_used_is_named(history: History, tmp_path: Path) -> None:
    file = tmp_path / "key"
    thread = member(history, key_file=str(file))
    with pytest.raises(ExchangeError, match=f"^fleet.key_file: {file}: cannot be read: No such file or directory$"):
        thread.step(0.0)
    file.write_text("short\n")
    with pytest.raises(ExchangeError, match=f"^fleet.key_file: {file}: has 5 characters; allowed: 16 to 64$"):
        thread.step(1.0)
    file.write_text("long enough for a key\n")
    with pytest.raises(ExchangeError, match="Connection refused"):
        thread.step(2.0)


def test_ledger_that_cannot_be_read_has_no_field(tmp_path: Path) -> None:
    history = History(tmp_path, "boot")  # a directory is no database
    with pytest.raises(ExchangeError, match=r"^the ledger of this proxy cannot be read$"):
        member(history, share_clients=True).step(0.0)


def test_thread_says_why_it_shares_nothing(history: History) -> None:
    thread = member(history, share_clients=True)
    thread.start()
    while thread.state.problem is None:
        thread.join(0.01)
    thread.stop()
    assert not thread.is_alive()
    assert "Connection refused" in thread.state.problem
    assert (thread.state.name, thread.state.server, thread.state.exchanged_at) == ("proxy-1", None, None)


def test_age_is_since_an_earlier_instance_has_read_what_changed(history: History) -> None:
    assert member(history, share_clients=True).state.exchanged_at is None
    used: dict[Subject, Elsewhere] = {None: Elsewhere(7)}
    assert history.flush(
        0.0, 0.0, {}, LedgerChanges(elsewhere={AccountKey("ethernet", "month"): used}, read_at=time.time() - 3600)
    )
    exchanged_at = member(history, share_clients=True).state.exchanged_at
    assert exchanged_at is not None
    assert 3600 <= time.monotonic() - exchanged_at < 3660
