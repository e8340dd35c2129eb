"""The tables of the ledger of budgets in the database of the history: writes and reads their rows."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, NamedTuple, TypeVar

from mptcp_throttle.periods import Period
from mptcp_throttled.accounting.missing_columns import add_missing_columns
from mptcp_throttled.vocabulary.budgets import AccountKey, Addition, Subject, Use
from mptcp_throttled.vocabulary.fleet import Elsewhere, proxy_of

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS budget_periods (
    network TEXT, budget TEXT, start REAL, end REAL, rolled_over INTEGER, is_provisional INTEGER,
    PRIMARY KEY (network, budget)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS budget_uses (
    network TEXT, budget TEXT, subject TEXT, used INTEGER, without_mptcp INTEGER, PRIMARY KEY (network, budget, subject)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS budget_parts (
    network TEXT, budget TEXT, subject TEXT, part INTEGER, used INTEGER, without_mptcp INTEGER,
    PRIMARY KEY (network, budget, subject, part)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS budget_additions (
    network TEXT, budget TEXT, subject TEXT, additions TEXT, PRIMARY KEY (network, budget, subject)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS budget_elsewhere (
    network TEXT, budget TEXT, subject TEXT, used INTEGER, by_field TEXT, PRIMARY KEY (network, budget, subject)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS budget_read (place INTEGER PRIMARY KEY, at REAL);
"""

_OF_NETWORK: Final = ""
_WRITE_PERIOD: Final = (
    "INSERT OR REPLACE INTO budget_periods (network, budget, start, end, rolled_over, is_provisional)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
_WRITE_USE: Final = (
    "INSERT OR REPLACE INTO budget_uses (network, budget, subject, used, without_mptcp) VALUES (?, ?, ?, ?, ?)"
)
_WRITE_PART: Final = (
    "INSERT OR REPLACE INTO budget_parts (network, budget, subject, part, used, without_mptcp)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
_WRITE_ADDITION: Final = (
    "INSERT OR REPLACE INTO budget_additions (network, budget, subject, additions) VALUES (?, ?, ?, ?)"
)
_WRITE_ELSEWHERE: Final = (
    "INSERT OR REPLACE INTO budget_elsewhere (network, budget, subject, used, by_field) VALUES (?, ?, ?, ?, ?)"
)
# A later version may have more columns.
_READ_PERIODS: Final = "SELECT network, budget, NULL, start, end, rolled_over, is_provisional FROM budget_periods"
_READ_USES: Final = "SELECT network, budget, subject, used, without_mptcp FROM budget_uses"
_READ_PARTS: Final = "SELECT network, budget, subject, part, used, without_mptcp FROM budget_parts"
_READ_ADDITIONS: Final = "SELECT network, budget, subject, additions FROM budget_additions"
_READ_ELSEWHERE: Final = "SELECT network, budget, subject, used, by_field FROM budget_elsewhere"
LAST_READ: Final = "SELECT at FROM budget_read"
"""When changed totals of other proxies were read last, in seconds since the epoch."""
_MOST_BYTES: Final = 2**62
MOST_FIELDS: Final = 16
"""The most totals of other proxies that are kept for a subject, the largest ones, beside the sum of all: oversized
hashes at the server must not fill the database."""

_T = TypeVar("_T")


class StoredPeriod(NamedTuple):
    """The present period of a budget.

    `rolled_over`: what was not used of the period before was added to it. `is_provisional`: it began by a clock that
    was not synchronised.
    """

    period: Period
    rolled_over: bool = False
    is_provisional: bool = False


@dataclass(frozen=True, slots=True)
class StoredAccount:
    """A budget as it is stored: its present period; and by subject its use, its additions, and what it has used
    elsewhere.

    The use of a rolling budget is in `parts`, by subject and number of the part (`rolling`).
    """

    period: StoredPeriod
    uses: Mapping[Subject, Use] = field(default_factory=dict)
    additions: Mapping[Subject, tuple[Addition, ...]] = field(default_factory=dict)
    parts: Mapping[Subject, Mapping[int, Use]] = field(default_factory=dict)
    elsewhere: Mapping[Subject, Elsewhere] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LedgerChanges:
    """What has changed since the last writing, by account.

    `periods` have begun: the stored use of these accounts ends. `uses` and `additions` replace the stored ones by
    subject, `parts` by subject and number; parts with lower numbers than in `dropped` are removed. `elsewhere` is what
    subjects have used at other proxies; it was `read_at`, in seconds since the epoch, None: by an earlier instance.
    """

    periods: Mapping[AccountKey, StoredPeriod] = field(default_factory=dict)
    uses: Mapping[AccountKey, Mapping[Subject, Use]] = field(default_factory=dict)
    additions: Mapping[AccountKey, Mapping[Subject, tuple[Addition, ...]]] = field(default_factory=dict)
    parts: Mapping[AccountKey, Mapping[tuple[Subject, int], Use]] = field(default_factory=dict)
    dropped: Mapping[AccountKey, int] = field(default_factory=dict)
    elsewhere: Mapping[AccountKey, Mapping[Subject, Elsewhere]] = field(default_factory=dict)
    read_at: float | None = None


def prepare(database: sqlite3.Connection) -> None:
    """Create the tables, and the columns that those of an earlier version lack. Raises sqlite3.Error."""
    database.executescript(SCHEMA)
    add_missing_columns(database, "budget_elsewhere", {"by_field": "TEXT"})


def write_changes(database: sqlite3.Connection, changes: LedgerChanges) -> None:
    """Write changes in the present transaction. Raises sqlite3.Error."""
    periods = [(*key, *period, *flags) for key, (period, *flags) in changes.periods.items()]
    uses = [
        (*key, _text(subject), *use) for key, by_subject in changes.uses.items() for subject, use in by_subject.items()
    ]
    dropped = [(*key, first) for key, first in changes.dropped.items()]
    parts = [
        (*key, _text(subject), number, *use)
        for key, by_part in changes.parts.items()
        for (subject, number), use in by_part.items()
    ]
    additions = [
        (*key, _text(subject), present)
        for key, by_subject in changes.additions.items()
        for subject, present in by_subject.items()
    ]
    elsewhere = [
        (*key, _text(subject), used, json.dumps(sorted(by_field, key=lambda each: -each[1])[:MOST_FIELDS]))
        for key, by_subject in changes.elsewhere.items()
        for subject, (used, _, by_field) in by_subject.items()
    ]
    read_at = [(changes.read_at,)] if elsewhere and changes.read_at is not None else []
    gone = [row[:3] for row in additions if not row[3]]
    left = [(*row[:3], json.dumps(row[3])) for row in additions if row[3]]
    for statement, rows in (
        ("DELETE FROM budget_uses WHERE network = ? AND budget = ?", [*changes.periods]),
        ("DELETE FROM budget_elsewhere WHERE network = ? AND budget = ?", [*changes.periods]),
        (_WRITE_PERIOD, periods),
        (_WRITE_USE, uses),
        ("DELETE FROM budget_parts WHERE network = ? AND budget = ? AND part < ?", dropped),
        (_WRITE_PART, parts),
        ("DELETE FROM budget_additions WHERE network = ? AND budget = ? AND subject = ?", gone),
        (_WRITE_ADDITION, left),
        (_WRITE_ELSEWHERE, elsewhere),
        ("INSERT OR REPLACE INTO budget_read (place, at) VALUES (0, ?)", read_at),
    ):
        if rows:
            database.executemany(statement, rows)


def read_accounts(database: sqlite3.Connection) -> tuple[dict[AccountKey, StoredAccount], int]:
    """All accounts that are stored, and how many rows cannot be decoded. Raises sqlite3.Error."""
    uses, bad_uses = _read(database, _READ_USES, _use)
    additions, bad_additions = _read(database, _READ_ADDITIONS, _additions)
    periods, bad_periods = _read(database, _READ_PERIODS, _period)
    parts, bad_parts = _read_parts(database)
    elsewhere, bad_elsewhere = _read(database, _READ_ELSEWHERE, _elsewhere)
    accounts = {
        key: StoredAccount(
            by_subject[None], uses.get(key, {}), additions.get(key, {}), parts.get(key, {}), elsewhere.get(key, {})
        )
        for key, by_subject in periods.items()
    }
    return accounts, bad_uses + bad_additions + bad_periods + bad_parts + bad_elsewhere


def _read_parts(database: sqlite3.Connection) -> tuple[dict[AccountKey, dict[Subject, dict[int, Use]]], int]:
    """The parts of rolling budgets, by account and subject; and how many rows cannot be decoded."""
    read: dict[AccountKey, dict[Subject, dict[int, Use]]] = {}
    bad = 0
    for network, budget, subject, number, *values in database.execute(_READ_PARTS):
        try:
            use = _use(*values)
            if use.used:
                by_subject = read.setdefault(AccountKey(str(network), str(budget)), {})
                by_subject.setdefault(_subject(subject), {})[_bytes(number)] = use
        except (ValueError, TypeError):
            bad += 1
    return read, bad


def _read(
    database: sqlite3.Connection, query: str, parse: Callable[..., _T]
) -> tuple[dict[AccountKey, dict[Subject, _T]], int]:
    """The rows by account and subject, without those that cannot be decoded; and how many these are."""
    read: dict[AccountKey, dict[Subject, _T]] = {}
    bad = 0
    for network, budget, subject, *values in database.execute(query):
        try:
            read.setdefault(AccountKey(str(network), str(budget)), {})[_subject(subject)] = parse(*values)
        except (ValueError, TypeError, RecursionError):
            bad += 1
    return read, bad


def _use(used: object, without_mptcp: object) -> Use:
    return Use(_bytes(used), _bytes(without_mptcp))


def _elsewhere(used: object, by_field: str | None) -> Elsewhere:
    totals = tuple((name, _bytes(total)) for name, total in json.loads(by_field or "[]"))
    for name, _ in totals:
        proxy_of(name)
    return Elsewhere(_bytes(used), by_field=totals)


def _additions(text: str) -> tuple[Addition, ...]:
    parts = (Addition(_bytes(amount), _bytes(left), _time(until)) for amount, left, until in json.loads(text))
    return tuple(parts)


def _period(start: object, end: object, rolled_over: object, is_provisional: object) -> StoredPeriod:
    begin, finish = _time(start), _time(end)
    if begin is None or finish is None or begin >= finish:
        raise ValueError("no period")
    return StoredPeriod(Period(begin, finish), bool(rolled_over), bool(is_provisional))


def _bytes(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < _MOST_BYTES:
        raise ValueError("no number of bytes")
    return value


def _time(value: object) -> float | None:
    if value is not None and (not isinstance(value, int | float) or not math.isfinite(value)):
        raise ValueError("no time")
    return value


def _text(subject: Subject) -> str:
    return _OF_NETWORK if subject is None else str(subject)


def _subject(text: str | None) -> Subject:
    return None if text in {None, _OF_NETWORK} else ip_address(str(text))
