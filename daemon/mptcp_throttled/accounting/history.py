"""The history of what networks and clients have carried, in SQLite: by second, by minute and by hour; and budgets.

It is written by the first observation after `FLUSH_SECONDS`: a daemon that is killed loses at most twice that. What was
counted of each live socket is written with it, so that the next instance continues from there; so is the use of budgets
(`ledger_rows`), so that no byte counts twice or not at all.

A damaged database is set aside, and the history begins again. A database of an earlier version is kept, and gets the
columns that it lacks. While the database cannot be written, sums are kept in memory as long as they fit.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

from mptcp_throttle.errors import shown
from mptcp_throttled.accounting import ledger_rows
from mptcp_throttled.accounting.control_group import KEPT_DAYS, ByDay, DaySums, GroupSums, Sums
from mptcp_throttled.accounting.history_rows import KEPT, Account, ClientSums, HistoryRow, HourOfWaiting, Kind
from mptcp_throttled.accounting.ledger_rows import (
    LedgerChanges,
    StoredAccount,
    read_accounts,
    write_changes,
)
from mptcp_throttled.accounting.missing_columns import add_missing_columns
from mptcp_throttled.reporting.instruments import count_errors
from mptcp_throttled.vocabulary.budgets import AccountKey
from mptcp_throttled.vocabulary.traffic import SocketTotals, Traffic

_log = logging.getLogger("mptcp-throttled")

FLUSH_SECONDS: Final = 5.0
MAX_CLIENT_ROWS: Final = 200_000
"""The most rows of clients of one resolution, and the most of paths. If there were more, the oldest are removed."""

_MAX_PENDING: Final = 100_000
_CLOCK_STEP_SECONDS: Final = 60.0
_PAGE_BYTES: Final = 4096
_MAX_BYTES: Final = 256 * 2**20
# The cookie, and the totals without `steered`: its programs count from 0 in the next instance.
_COUNTED: Final = Struct("=QQQQIIII")
_COLUMNS: Final = tuple(field.name for field in fields(Traffic))
_values: Final[Callable[[Traffic], tuple[float, ...]]] = attrgetter(*_COLUMNS)  # astuple would copy each value
_OF_COLUMNS: Final = "NUMERIC DEFAULT 0"

_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS traffic (
    resolution INTEGER, start INTEGER, kind TEXT, name TEXT,
    {", ".join(f"{column} {_OF_COLUMNS}" for column in _COLUMNS)},
    PRIMARY KEY (resolution, kind, name, start)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_age ON traffic (resolution, kind, start);
CREATE TABLE IF NOT EXISTS counted (boot TEXT, sockets BLOB);
CREATE TABLE IF NOT EXISTS ledger (place INTEGER PRIMARY KEY, identifier TEXT);
CREATE TABLE IF NOT EXISTS compared (day TEXT, instance TEXT, sums TEXT, PRIMARY KEY (day, instance)) WITHOUT ROWID;
"""
_ADD: Final = (
    f"INSERT INTO traffic (resolution, start, kind, name, {', '.join(_COLUMNS)})"  # noqa: S608
    f" VALUES ({', '.join('?' * (4 + len(_COLUMNS)))}) ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{column} = {column} + excluded.{column}" for column in _COLUMNS)
)
_NAME_LEDGER: Final = "INSERT OR REPLACE INTO ledger (place, identifier) VALUES (0, ?)"
_LEDGER: Final = re.compile(r"[0-9a-f]{8}")


class Counted(NamedTuple):
    """What was counted of `sockets`, by cookie, since the boot. `is_first`: there was no instance before that could."""

    sockets: Mapping[int, SocketTotals]
    is_first: bool


class _Written(NamedTuple):
    """What was written last: what was counted of live sockets, whether `with_tcp`, and the name of the ledger."""

    sockets: bytes
    with_tcp: bool
    ledger: str | None


class History:
    """The database at `path`. `add` and `flush` are for one thread, `read` for any. `boot` identifies this boot.

    `renewals` is how often a damaged database was set aside after the start.

    Nothing raises: what goes wrong is in the log, once.
    """

    def __init__(self, path: Path, boot: str) -> None:
        self._path = path
        self._boot = boot
        self._lock = threading.Lock()
        self._pending: dict[tuple[int, int, Account], Traffic] = {}
        self._problem: str | None = None
        self._clocks: tuple[float, float] | None = None
        self._prune_at = 0.0
        # Each instance writes its own sums of days: those of an earlier one that cannot be read stay as they are.
        self._instance = secrets.token_hex(8)
        self._ledger: str | None = None
        self._days: Mapping[str, DaySums] = {}
        self._written_days: Mapping[str, DaySums] = {}
        self._written: _Written | None = None
        self._room = 0
        self.renewals = 0
        self._database = self._open()

    def add(self, at: float, carried: Iterable[tuple[Account, Traffic]]) -> None:
        """Add what accounts have carried just before `at` (seconds since the epoch); `flush` writes it."""
        for account, traffic in carried:
            for resolution in KEPT:
                key = (resolution, int(at) // resolution * resolution, account)
                before = self._pending.get(key)
                self._pending[key] = traffic if before is None else before.plus(traffic)
        if len(self._pending) > _MAX_PENDING:
            self._shed()

    def keep_days(self, days: ByDay) -> None:
        """Let the next `flush` write these sums of this instance; the mapping must not change. For any thread."""
        self._days = days

    def flush(
        self,
        now: float,
        monotonic: float,
        counted: Mapping[int, SocketTotals],
        budgets: LedgerChanges | None = None,
        *,
        with_tcp: bool = False,
    ) -> bool:
        """Write what was added, what was counted of live sockets, and changes of budgets; remove what is too old.

        `now` is in seconds since the epoch, `monotonic` in monotonic seconds. `with_tcp`: TCP without MPTCP is counted.
        Returns whether all is written.
        """
        with self._lock:
            try:
                database = self._opened()
                if database is None:
                    return False
                try:
                    self._write(database, counted, budgets, with_tcp=with_tcp)
                    self._pending.clear()
                finally:
                    if self._may_prune(now, monotonic):
                        with database:  # a full one has room again
                            _prune(database, now)
                            if self._room <= 0:
                                self._room = _shorten(database)
                self._note(None)
            except (sqlite3.Error, OverflowError) as error:
                self._note_error(error)
                return False
            return True

    def _write(
        self,
        database: sqlite3.Connection,
        counted: Mapping[int, SocketTotals],
        budgets: LedgerChanges | None,
        *,
        with_tcp: bool,
    ) -> None:
        # What has not changed is not written again: a proxy's disk may be flash memory.
        before, written = self._written, _Written(_packed(counted), with_tcp, self._ledger)
        with database:
            if self._pending:
                rows = (
                    (resolution, start, *account, *_values(traffic))
                    for (resolution, start, account), traffic in self._pending.items()
                )
                database.executemany(_ADD, rows)
            if before is None or written.sockets != before.sockets:
                database.execute("DELETE FROM counted")
                database.execute("INSERT INTO counted VALUES (?, ?)", (self._boot, written.sockets))
            if before is None or with_tcp != before.with_tcp:
                database.execute(f"PRAGMA user_version = {with_tcp:d}")
            if written.ledger is not None and (before is None or written.ledger != before.ledger):
                database.execute(_NAME_LEDGER, (written.ledger,))
            if budgets is not None:
                write_changes(database, budgets)
            days = self._days
            changed = [(day, sums) for day, sums in days.items() if self._written_days.get(day) is not sums]
            if changed:
                database.executemany(
                    "INSERT OR REPLACE INTO compared (day, instance, sums) VALUES (?, ?, ?)",
                    ((day, self._instance, json.dumps(sums)) for day, sums in changed),
                )
        self._written_days, self._written = days, written
        self._room -= len(self._pending)

    def _note_error(self, error: Exception) -> None:
        """Log what has failed; if the database is damaged, set it aside, and begin another."""
        self._note(str(error))
        if type(error) is sqlite3.DatabaseError:
            if self._database is not None:
                self._database.close()
            self._database = self._set_aside()
            self._written_days, self._written = {}, None
            self.renewals += 1

    def read(self, account: Account, resolution: int, since: float) -> list[HistoryRow]:
        """The rows of an account since then (seconds since the epoch), the oldest first, as far as they are written."""
        rows = self._select(
            f"SELECT start, {', '.join(_COLUMNS)} FROM traffic"  # noqa: S608
            " WHERE resolution = ? AND kind = ? AND name = ? AND start >= ? ORDER BY start",
            (resolution, *account, since),
        )
        return [HistoryRow(start, Traffic(*values)) for start, *values in rows]

    def top_clients(self, since: float, number: int) -> list[ClientSums]:
        """The clients to which most IP bytes were sent since then (seconds since the epoch), by minute; most first."""
        rows = self._select(
            "SELECT name, SUM(ip_sent) AS total, SUM(ip_sent_throttled), SUM(held_back_ms) FROM traffic"
            " WHERE resolution = 60 AND kind = ? AND start >= ? GROUP BY name ORDER BY total DESC, name LIMIT ?",
            (Kind.CLIENT, since, number),
        )
        return list(itertools.starmap(ClientSums, rows))

    def held_back_by_client(self, since: float) -> dict[str, int]:
        """By name of an account, the milliseconds that data of a client waited since then (seconds since the epoch).

        By minute; clients whose data did not wait are left out.
        """
        rows = self._select(
            "SELECT name, SUM(held_back_ms) FROM traffic"
            " WHERE resolution = 60 AND kind = ? AND start >= ? AND held_back_ms > 0 GROUP BY name",
            (Kind.CLIENT, since),
        )
        return dict(rows)

    def days(self) -> dict[str, DaySums]:
        """The sums for the comparison with the control group, of all instances, by day."""
        kept: dict[str, DaySums] = {}
        for day, text in self._select("SELECT day, sums FROM compared", ()):
            try:
                sums = _day_sums(json.loads(text))
            except (ValueError, TypeError, RecursionError):
                _log.error("%s: sums of %s cannot be used: what they say is forgotten", self._path, shown(day))
            else:
                kept[str(day)] = kept.get(str(day), DaySums()).with_all_of(sums)
        return kept

    def waiting_by_hour(self, since: float) -> list[HourOfWaiting]:
        """How long data of clients waited in each hour since then (seconds since the epoch), the oldest first."""
        where = "FROM traffic WHERE resolution = 3600 AND kind = ? AND start >= ?"
        numbers = self._select(f"SELECT start, COUNT(*) {where} GROUP BY start ORDER BY start", (Kind.CLIENT, since))
        waited: dict[int, list[int]] = {}
        query = f"SELECT start, held_back_ms {where} AND held_back_ms > 0"
        for start, milliseconds in self._select(query, (Kind.CLIENT, since)):
            waited.setdefault(start, []).append(milliseconds)
        return [HourOfWaiting.of(start, number, waited.get(start, ())) for start, number in numbers]

    def counted(self) -> Counted | None:
        """What an earlier instance has counted of live sockets; None while the database cannot be read."""
        with self._lock:
            try:
                database = self._opened()
                if database is None:
                    return None
                rows = database.execute("SELECT sockets FROM counted WHERE boot = ?", (self._boot,)).fetchall()
            except sqlite3.Error as error:
                self._note_error(error)
                return None
        return Counted(_unpacked(rows[0][0]) if rows else {}, is_first=not rows)

    def budgets(self) -> dict[AccountKey, StoredAccount] | None:
        """What is stored of budgets; None while the database cannot be read."""
        with self._lock:
            try:
                database = self._opened()
                if database is None:
                    return None
                accounts, bad = read_accounts(database)
            except sqlite3.Error as error:
                self._note_error(error)
                return None
        if bad:
            _log.error("%s: %d rows of budgets cannot be used: what they say is forgotten", self._path, bad)
        return accounts

    def ledger(self) -> str | None:
        """The name of the ledger of budgets in this database, which no other one has; None: it cannot be read now.

        A new database gets a random name, which is written at once: the next instance must publish by the same name. If
        the database is set aside while this instance runs, the next one gets the same name.
        """
        with self._lock:
            if self._ledger is None:
                try:
                    database = self._opened()
                    if database is None:
                        return None
                    rows = database.execute("SELECT identifier FROM ledger").fetchall()
                    identifier = str(rows[0][0]) if rows else ""
                    if not _LEDGER.fullmatch(identifier):
                        identifier = secrets.token_hex(4)
                        with database:
                            database.execute(_NAME_LEDGER, (identifier,))
                except sqlite3.Error as error:
                    self._note_error(error)
                    return None
                self._ledger = identifier
            return self._ledger

    @property
    def read_at(self) -> float | None:
        """When totals of other proxies that had changed were read last, in seconds since the epoch; None: never."""
        rows = self._select(ledger_rows.LAST_READ, ())
        return rows[0][0] if rows and isinstance(rows[0][0], float) else None

    @property
    def counted_tcp(self) -> bool:
        """Whether TCP without MPTCP was counted when `counted` was written."""
        rows = self._select("PRAGMA user_version", ())
        return bool(rows and rows[0][0])

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _select(self, query: str, values: Sequence[str | float]) -> list[Any]:
        """The rows of a query; none while the database cannot be read."""
        with self._lock:
            if self._database is not None:
                try:
                    return self._database.execute(query, values).fetchall()
                except sqlite3.Error as error:
                    self._note(str(error))
        return []

    def _opened(self) -> sqlite3.Connection | None:
        """The database, opened if it is not yet; None if it cannot be opened now."""
        self._database = self._database or self._open()
        return self._database

    def _open(self) -> sqlite3.Connection | None:
        """The database; None if there can be none now. One that is damaged is set aside."""
        try:
            return _connect(self._path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                self._note(str(error))
                return None
            self._note(str(error))
            return self._set_aside()

    def _set_aside(self) -> sqlite3.Connection | None:
        """Another database in place of a damaged one; None if there can be none now."""
        aside = self._path.with_suffix(".damaged")
        _log.error("%s: damaged; set aside as %s, and the history begins again", self._path, aside.name)
        try:
            self._path.replace(aside)
            for suffix in ("-wal", "-shm"):
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)
            return _connect(self._path)
        except (OSError, sqlite3.Error) as error:
            self._note(str(error))
            return None

    def _note(self, problem: str | None) -> None:
        if problem == self._problem:
            return
        self._problem = problem
        if problem is None:
            _log.info("%s: written again", self._path)
        else:
            _log.error("%s: %s; the history is kept in memory until it can be written", self._path, problem)
            count_errors("history")

    def _may_prune(self, now: float, monotonic: float) -> bool:
        """Whether to remove what is too old: once a minute, but not soon after the wall clock was set.

        A clock that is wrong must not remove all history.
        """
        clocks, self._clocks = self._clocks, (now, monotonic)
        if clocks is not None and abs((now - clocks[0]) - (monotonic - clocks[1])) > _CLOCK_STEP_SECONDS:
            self._prune_at = monotonic + KEPT[1]
        if monotonic < self._prune_at:
            return False
        self._prune_at = monotonic + _CLOCK_STEP_SECONDS
        return True

    def _shed(self) -> None:
        """Drop pending rows until half of the most is left: of clients first, of these the finest, then the oldest."""
        order = sorted(self._pending, key=lambda key: (key[2].kind is Kind.NETWORK, key[0], key[1]))
        for key in order[: len(order) - _MAX_PENDING // 2]:
            del self._pending[key]


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=1.0, check_same_thread=False)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(f"PRAGMA max_page_count = {_MAX_BYTES // _PAGE_BYTES}")
        database.executescript(_SCHEMA)
        ledger_rows.prepare(database)
        add_missing_columns(database, "traffic", dict.fromkeys(_COLUMNS, _OF_COLUMNS))
    except sqlite3.Error:
        database.close()
        raise
    # The database has addresses of clients.
    path.chmod(0o600)
    return database


def _prune(database: sqlite3.Connection, now: float) -> None:
    kept = "SELECT DISTINCT day FROM compared ORDER BY day DESC LIMIT ?"
    database.execute(f"DELETE FROM compared WHERE day NOT IN ({kept})", (KEPT_DAYS,))  # noqa: S608
    # By kind, as in the index: otherwise all rows of a resolution would be read.
    too_old = "DELETE FROM traffic WHERE resolution = ? AND kind = ? AND start < ?"
    for (resolution, seconds), kind in itertools.product(KEPT.items(), Kind):
        database.execute(too_old, (resolution, kind, now - seconds))


def _shorten(database: sqlite3.Connection) -> int:
    """Remove the oldest rows of clients beyond `MAX_CLIENT_ROWS`; how many may be added until it is due again."""
    most = 0
    for resolution, kind in itertools.product(KEPT, (Kind.CLIENT, Kind.PATH)):
        count = "SELECT COUNT(*) FROM traffic WHERE resolution = ? AND kind = ?"
        number: int = database.execute(count, (resolution, kind)).fetchone()[0]
        most = max(most, number)
        if number > MAX_CLIENT_ROWS:
            query = "SELECT start FROM traffic WHERE resolution = ? AND kind = ? ORDER BY start DESC LIMIT 1 OFFSET ?"
            excess = database.execute(query, (resolution, kind, MAX_CLIENT_ROWS)).fetchone()
            too_many = "DELETE FROM traffic WHERE resolution = ? AND kind = ? AND start <= ?"
            database.execute(too_many, (resolution, kind, *excess))
    return MAX_CLIENT_ROWS - most


def _day_sums(data: Any) -> DaySums:  # noqa: ANN401
    """Decode the sums of a day. Raises ValueError or TypeError if `data` is not what `flush` writes."""
    capped, control = (
        GroupSums(Sums(*map(int, sent)), Sums(*map(int, with_cap)), int(products), Sums(*map(int, rates)))
        for sent, with_cap, products, rates in data
    )
    return DaySums(capped, control)


def _packed(counted: Mapping[int, SocketTotals]) -> bytes:
    return b"".join(_COUNTED.pack(cookie, *totals[:-1]) for cookie, totals in counted.items())


def _unpacked(sockets: bytes) -> dict[int, SocketTotals]:
    return {cookie: SocketTotals(*totals) for cookie, *totals in _COUNTED.iter_unpack(sockets)}
