"""The history: what was added is read back at every resolution, bounded, and no clock, disk or damage stops it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Final

import pytest
from examples import ETHERNET, WIFI

from mptcp_throttle.errors import UserError
from mptcp_throttle.model import ClientPrefix, Devices, NamedClient, Token
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import ONE_PROXY, Proxies, Proxy
from mptcp_throttled.accounting import history as module
from mptcp_throttled.accounting.control_group import DaySums
from mptcp_throttled.accounting.history import Counted, History
from mptcp_throttled.accounting.history_rows import (
    KEPT,
    Account,
    ClientSums,
    HourOfWaiting,
    Kind,
    resolution_for,
    summed,
)
from mptcp_throttled.accounting.requested_accounts import requested_accounts, requested_path
from mptcp_throttled.vocabulary.control_group import EndedConnection
from mptcp_throttled.vocabulary.traffic import SocketTotals, Traffic

WIFI_ACCOUNT = Account(Kind.NETWORK, "wifi")
NOON = 1_800_000_000.0
HOUR = 3600
FIRST_SCHEMA = """
CREATE TABLE traffic (
    resolution INTEGER, start INTEGER, kind TEXT, name TEXT, sent NUMERIC, retransmitted NUMERIC, received NUMERIC,
    ip_sent NUMERIC, ip_sent_throttled NUMERIC, ip_received NUMERIC, closed NUMERIC, rtt_seconds NUMERIC,
    rtt_samples NUMERIC,
    PRIMARY KEY (resolution, kind, name, start)
) WITHOUT ROWID;
CREATE INDEX by_age ON traffic (resolution, kind, start);
CREATE TABLE counted (boot TEXT, sockets BLOB);
PRAGMA user_version = 1;
"""
"""Without `held_back_ms`."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def sent(history: History, account: Account = WIFI_ACCOUNT, resolution: int = 1, since: float = 0) -> dict[int, int]:
    return {period.start: period.traffic.sent for period in history.read(account, resolution, since)}


def test_traffic_is_read_back_by_second_minute_and_hour(path: Path) -> None:
    history = History(path, "boot")
    for second in range(3):
        history.add(NOON + 59 + second, [(WIFI_ACCOUNT, Traffic(sent=100))])
    history.flush(NOON + 62, 62, {})
    start = int(NOON)
    assert sent(history) == {start + 59: 100, start + 60: 100, start + 61: 100}
    assert sent(history, resolution=60) == {start: 100, start + 60: 200}
    assert sent(history, resolution=3600) == {start // HOUR * HOUR: 300}
    assert sent(history, since=NOON + 60.5) == {start + 61: 100}


def test_flushes_within_a_period_are_added_up(path: Path) -> None:
    history = History(path, "boot")
    for number in range(3):
        history.add(NOON, [(WIFI_ACCOUNT, Traffic(sent=1, received=10, rtt_seconds=0.5, rtt_samples=1))])
        history.flush(NOON, number, {})
    (period,) = history.read(WIFI_ACCOUNT, 60, 0)
    assert period.traffic == Traffic(sent=3, received=30, rtt_seconds=1.5, rtt_samples=3)


def test_next_instance_reads_what_was_flushed_before_a_kill(path: Path) -> None:
    killed = History(path, "boot")
    killed.add(NOON, [(WIFI_ACCOUNT, Traffic(sent=100))])
    killed.flush(NOON, 0, {7: SocketTotals(1, 2, 3, 4, 5, 6, 7)})
    killed.add(NOON + 1, [(WIFI_ACCOUNT, Traffic(sent=100))])
    after = History(path, "boot")
    assert sent(after) == {int(NOON): 100}
    assert after.counted() == Counted({7: SocketTotals(1, 2, 3, 4, 5, 6, 7)}, is_first=False)


def test_rows_that_cannot_be_removed_are_not_written_twice(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_database: sqlite3.Connection, _now: float) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    history = History(path, "boot")
    history.add(NOON, [(WIFI_ACCOUNT, Traffic(sent=100))])
    with monkeypatch.context() as patched:
        patched.setattr(module, "_prune", refuse)
        assert not history.flush(NOON, 0, {})
    assert history.flush(NOON + 5, 5, {})
    assert sent(history) == {int(NOON): 100}


def test_counted_sockets_of_another_boot_are_unknown(path: Path) -> None:
    history = History(path, "boot")
    assert history.counted() == Counted({}, is_first=True)
    history.flush(NOON, 0, {7: SocketTotals(1)})
    assert History(path, "another").counted() == Counted({}, is_first=True)


def test_busiest_clients_are_those_that_were_sent_most(path: Path) -> None:
    history = History(path, "boot")
    for minute in range(2):
        clients = [
            (
                Account(Kind.CLIENT, f"10.1.0.{number}"),
                Traffic(ip_sent=number, ip_sent_throttled=1, held_back_ms=number),
            )
            for number in range(3)
        ]
        history.add(NOON + 60 * minute, [(WIFI_ACCOUNT, Traffic(ip_sent=100)), *clients])
    history.flush(NOON + 60, 60, {})
    assert history.top_clients(NOON, 2) == [ClientSums("10.1.0.2", 4, 2, 4), ClientSums("10.1.0.1", 2, 2, 2)]
    assert history.top_clients(NOON + 30, 1) == [ClientSums("10.1.0.2", 2, 1, 2)]


def test_old_periods_are_removed_at_their_own_age(path: Path) -> None:
    history = History(path, "boot")
    history.add(NOON, [(WIFI_ACCOUNT, Traffic(sent=100))])
    history.flush(NOON, 0, {})
    history.flush(NOON + 2 * KEPT[1], 2 * KEPT[1], {})
    assert sent(history) == {}
    assert len(sent(history, resolution=60)) == len(sent(history, resolution=3600)) == 1


def test_wall_clock_that_jumps_ahead_removes_no_history(path: Path) -> None:
    history = History(path, "boot")
    history.add(NOON, [(WIFI_ACCOUNT, Traffic(sent=100))])
    history.flush(NOON, 0, {})
    history.flush(NOON + 20 * 365 * 86_400, 100, {})
    history.flush(NOON + 20 * 365 * 86_400 + 5, 105, {})
    history.flush(NOON + 110, 110, {})
    assert len(sent(history, resolution=3600)) == 1


def test_number_of_client_rows_is_bounded_and_networks_stay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CLIENT_ROWS", 10)
    history = History(path, "boot")
    for minute in range(5):
        clients = [(Account(Kind.CLIENT, f"10.1.0.{number}"), Traffic(sent=1)) for number in range(6)]
        history.add(NOON + 60 * minute, [(WIFI_ACCOUNT, Traffic(sent=6)), *clients])
        history.flush(NOON + 60 * minute, 61.0 * minute, {})
    with sqlite3.connect(path) as database:
        query = "SELECT count(*) FROM traffic WHERE resolution = 60 AND kind = ?"
        assert database.execute(query, ("client",)).fetchone()[0] <= 10
        assert database.execute(query, ("network",)).fetchone()[0] == 5


def test_what_has_not_changed_is_not_written_again(path: Path) -> None:
    history, log = History(path, "boot"), Path(f"{path}-wal")
    counted = {7: SocketTotals(sent=1)}
    assert history.ledger() is not None
    history.add(NOON, [(WIFI_ACCOUNT, Traffic(sent=100))])
    history.flush(NOON, 0, counted)
    written = log.stat().st_size
    assert history.flush(NOON + 5, 5, counted)
    assert log.stat().st_size == written
    assert history.flush(NOON + 10, 10, {})
    assert log.stat().st_size > written


def test_damaged_database_is_set_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(b"no database" * 1000)
    history = History(path, "boot")
    history.add(NOON, [(WIFI_ACCOUNT, Traffic(sent=100))])
    history.flush(NOON, 0, {})
    assert sent(history) == {int(NOON): 100}
    assert path.with_suffix(".damaged").read_bytes().startswith(b"no database")
    assert "set aside" in caplog.text


def test_database_of_an_earlier_version_keeps_its_history(path: Path) -> None:
    with sqlite3.connect(path) as earlier:
        earlier.executescript(FIRST_SCHEMA)
        row = (1, int(NOON), "network", "wifi", 100, 20, 30, 150, 50, 60, 1, 0.5, 2)
        earlier.execute("INSERT INTO traffic VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    history = History(path, "boot")
    history.add(NOON, [(WIFI_ACCOUNT, Traffic(sent=1, held_back_ms=7))])
    history.add(NOON + 1, [(WIFI_ACCOUNT, Traffic(held_back_ms=9))])
    before = Traffic(100, 20, 30, 150, 50, 60, 1, 0.5, 2)
    assert [period.traffic for period in history.read(WIFI_ACCOUNT, 1, 0)] == [before]
    for _ in range(2):  # what has been changed once stays so
        history.flush(NOON, 0, {})
        after = [period.traffic for period in history.read(WIFI_ACCOUNT, 1, 0)]
        assert after == [before.plus(Traffic(sent=1, held_back_ms=7)), Traffic(held_back_ms=9)]
        history.close()
        history = History(path, "boot")
    assert not path.with_suffix(".damaged").exists()


def test_database_of_a_later_version_is_read_and_written(path: Path) -> None:
    History(path, "boot").close()
    with sqlite3.connect(path) as later:
        later.execute("ALTER TABLE traffic ADD COLUMN later NUMERIC DEFAULT 0")
    history = History(path, "boot")
    history.add(NOON, [(WIFI_ACCOUNT, Traffic(sent=100))])
    history.flush(NOON, 0, {})
    assert sent(history) == {int(NOON): 100}


def test_traffic_waits_in_memory_until_it_can_be_written(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = History(path, "boot")
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        history.add(NOON, [(WIFI_ACCOUNT, Traffic(sent=100))])
        history.flush(NOON, 0, {})
        history.flush(NOON, 5, {})
        other.execute("COMMIT")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    history.flush(NOON, 10, {})
    assert sent(history) == {int(NOON): 100}


def test_memory_is_bounded_while_nothing_can_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_PENDING", 30)
    history = History(path, "boot")
    for second in range(20):
        clients = [(Account(Kind.CLIENT, f"10.1.0.{number}"), Traffic(sent=1)) for number in range(3)]
        history.add(NOON + second, [(WIFI_ACCOUNT, Traffic(sent=3)), *clients])
    history.flush(NOON, 0, {})
    assert sum(sent(history, resolution=3600).values()) == 60


def test_file_is_for_its_owner_only(path: Path) -> None:
    History(path, "boot")
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("name", "account"),
    [
        ("wifi", WIFI_ACCOUNT),
        ("10.1.0.2", Account(Kind.CLIENT, "10.1.0.2")),
        ("fd00:1::2", Account(Kind.CLIENT, "fd00:1::")),
    ],
)
def test_account_is_a_network_or_the_client_with_an_address(name: str, account: Account) -> None:
    assert requested_accounts(name, (WIFI, ETHERNET), ONE_PROXY) == [account]


def test_client_of_two_proxies_has_an_account_for_each_prefix(path: Path) -> None:
    proxies = Proxies({name: Proxy((), Ports.of([port])) for name, port in (("work", 8080), ("guests", 8443))})
    hosts = replace(ETHERNET, proxy="work", client_prefix=ClientPrefix(ipv6=128))
    prefixes = replace(ETHERNET, name="guest-ethernet", proxy="guests")
    accounts = requested_accounts("fd00:1::2", (hosts, prefixes), proxies)
    assert accounts == [Account(Kind.CLIENT, "fd00:1::2"), Account(Kind.CLIENT, "fd00:1::")]
    assert requested_accounts("fd00:1::2", (prefixes,), proxies) == accounts[1:]
    assert requested_accounts("fd00:9::2", (hosts, prefixes), proxies) == [Account(Kind.CLIENT, "fd00:9::2")]
    history = History(path, "boot")
    history.add(60, [(accounts[0], Traffic(sent=1)), (accounts[1], Traffic(sent=10))])
    history.add(120, [(accounts[1], Traffic(sent=100))])
    history.flush(120, 0.0, {})
    periods = summed(period for account in accounts for period in history.read(account, 60, 0))
    assert [(period.start, period.traffic.sent) for period in periods] == [(60, 11), (120, 100)]


def test_unknown_account_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(
        UserError, match=r"lte.*no such network, device or address; allowed: wifi, ethernet, a device, or an IP address"
    ):
        requested_accounts("lte", (WIFI, ETHERNET), ONE_PROXY)


def test_account_of_an_address_has_no_zone() -> None:
    with pytest.raises(
        UserError, match=r"fe80::1%eth0.*; allowed: wifi, ethernet, a device, or an IP address without a zone"
    ):
        requested_accounts("fe80::1%eth0", (WIFI, ETHERNET), ONE_PROXY)


@pytest.mark.parametrize(
    ("seconds", "resolution"), [(60, 1), (600, 1), (3600, 60), (86_400, 60), (1e6, 3600), (1e9, 3600)]
)
def test_resolution_is_the_finest_that_is_kept(seconds: float, resolution: int) -> None:
    assert resolution_for(seconds) == resolution


def test_database_with_damaged_pages_is_set_aside_at_the_first_writing(path: Path) -> None:
    history = History(path, "boot")
    history.add(
        NOON,
        [(Account(Kind.CLIENT, f"10.1.{number // 256}.{number % 256}"), Traffic(sent=1)) for number in range(5000)],
    )
    assert history.flush(NOON, 0.0, {})
    history.close()
    damaged = History(path, "boot")
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))
    damaged.add(NOON, [(WIFI_ACCOUNT, Traffic(sent=1))])
    assert [damaged.flush(NOON, 0.0, {}) for _ in range(2)] == [False, True]
    assert damaged.renewals == 1
    assert path.with_suffix(".damaged").exists()
    assert [period.traffic for period in damaged.read(WIFI_ACCOUNT, 60, 0)] == [Traffic(sent=1)]


def test_budgets_in_damaged_pages_are_unknown_until_these_are_set_aside(path: Path) -> None:
    History(path, "boot").close()
    damaged = History(path, "boot")
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))
    assert [damaged.budgets() for _ in range(2)] == [None, {}]
    assert damaged.renewals == 1


def test_path_of_a_client_is_its_history_on_one_network() -> None:
    bus = NamedClient("bus-14", (ip_network("10.2.0.9/32"),))
    networks = (replace(WIFI, devices=Devices((bus,))), ETHERNET)
    asked = partial(requested_path, networks=networks, proxies=ONE_PROXY)
    assert asked("10.1.0.2", "ethernet") == [Account(Kind.CLIENT, "10.1.0.2")]
    assert asked("bus-14", "wifi") == [Account.of_path("wifi", "bus-14"), Account(Kind.CLIENT, "10.2.0.9")]
    assert asked("10.2.0.9", "wifi") == asked("bus-14", "wifi")
    for name, network, problem in (
        ("10.1.0.2", "wifi", "10.1.0.2: has no address in wifi; allowed: a client that has one"),
        ("10.1.0.2", "lte", "network: lte: no such access network; allowed: wifi, ethernet"),
        ("wifi", "wifi", "wifi: is a network; allowed: a device or an address"),
    ):
        with pytest.raises(UserError) as refused:
            asked(name, network)
        assert str(refused.value).replace("'", "") == problem


def test_paths_are_bounded_as_clients_are(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CLIENT_ROWS", 2)
    history, account = History(path, "boot"), Account.of_path("wifi", "bus-14")
    for second in range(5):
        history.add(NOON + second, [(account, Traffic(sent=1))])
    history.flush(NOON + 5, 5, {})
    assert list(sent(history, account)) == [int(NOON) + 3, int(NOON) + 4]


def test_clients_whose_data_waited_have_their_milliseconds(path: Path) -> None:
    history = History(path, "boot")
    one, other, bus = (Account(Kind.CLIENT, "10.1.0.1"), Account(Kind.CLIENT, "10.1.0.2"), Account.of_path("wifi", "x"))
    for minutes, milliseconds in ((0, 1000), (20, 30), (21, 8)):
        history.add(NOON + 60 * minutes, [(each, Traffic(held_back_ms=milliseconds)) for each in (one, bus)])
        history.add(NOON + 60 * minutes, [(other, Traffic(sent=1))])
    history.flush(NOON + 1300, 1300, {})
    assert history.held_back_by_client(NOON + 600) == {"10.1.0.1": 38}


def test_hours_have_the_99th_percentile_of_waiting(path: Path) -> None:
    history = History(path, "boot")
    for number in range(200):
        waited = {0: 70, 1: 50, 2: 60}.get(number, 0)
        history.add(NOON, [(Account(Kind.CLIENT, f"10.1.0.{number}"), Traffic(sent=1, held_back_ms=waited))])
    history.add(NOON + HOUR, [(Account(Kind.CLIENT, "10.1.0.1"), Traffic(sent=1)), (WIFI_ACCOUNT, Traffic(sent=1))])
    history.flush(NOON + HOUR, 0, {})
    first = int(NOON) // HOUR * HOUR
    assert history.waiting_by_hour(NOON - HOUR) == [
        HourOfWaiting(first, clients=200, waiting=3, held_back_ms=180, p99_ms=50, worst_ms=70),
        HourOfWaiting(first + HOUR, clients=1, waiting=0, held_back_ms=0, p99_ms=0, worst_ms=0),
    ]


@pytest.mark.parametrize(("clients", "p99"), [(3, 70), (100, 60), (101, 60), (200, 50), (299, 0), (300, 0)])
def test_one_client_in_a_hundred_may_wait_longer(clients: int, p99: int) -> None:
    assert HourOfWaiting.of(0, clients, [70, 50, 60] if clients < 299 else [70, 60]).p99_ms == p99


SUMS: Final = DaySums().plus(EndedConnection(Token(1), is_control=False, seconds=1.0, sent=2**60, sent_with_cap=2**59))


def test_sums_of_days_are_read_back_exactly_and_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_DAYS", 2)
    history = History(path, "boot")
    days = {f"2026-11-{day}": SUMS for day in (26, 27, 28)}
    history.keep_days(days)
    history.flush(NOON, 0, {})
    history.flush(NOON, 70, {})
    assert History(path, "boot").days() == dict.fromkeys(("2026-11-27", "2026-11-28"), SUMS)


def test_sums_of_days_are_written_again_when_they_have_changed(path: Path) -> None:
    history = History(path, "boot")
    for sums in (SUMS, SUMS.with_all_of(SUMS)):
        history.keep_days({"2026-11-28": sums})
        history.flush(NOON, 0, {})
        assert History(path, "boot").days() == {"2026-11-28": sums}
    other = History(path, "boot")
    other.keep_days({"2026-11-28": SUMS})
    other.flush(NOON, 0, {})
    assert other.days() == {"2026-11-28": SUMS.with_all_of(SUMS).with_all_of(SUMS)}


def test_sums_of_a_day_that_cannot_be_decoded_are_left_out(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = History(path, "boot")
    history.keep_days({"2026-11-27": SUMS, "2026-11-28": SUMS})
    history.flush(NOON, 0, {})
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE compared SET sums = '[[[1, 2], 3]]' WHERE day = '2026-11-27'")
        database.commit()
    assert list(History(path, "boot").days()) == ["2026-11-28"]
    assert "sums of 2026-11-27 cannot be used" in caplog.text.replace("'", "")
