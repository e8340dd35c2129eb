"""The rows of the ledger of budgets in the database of the history, and what they mean."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, NamedTuple, TypeVar

from mptcp_throttle.periods import Period
from mptcp_throttled.vocabulary.budgets import AccountKey, Addition, Subject, Use

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS budget_periods (
    network TEXT, budget TEXT, start REAL, end REAL, rolled_over INTEGER, is_provisional INTEGER,
    PRIMARY KEY (network, budget)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS budget_uses (
    network TEXT, budget TEXT, subject TEXT, used INTEGER, without_mptcp INTEGER, PRIMARY KEY (network, budget, subject)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS budget_additions (
    network TEXT, budget TEXT, subject TEXT, additions TEXT, PRIMARY KEY (network, budget, subject)
) WITHOUT ROWID;
"""

_OF_NETWORK: Final = ""
_WRITE_PERIOD: Final = (
    "INSERT OR REPLACE INTO budget_periods (network, budget, start, end, rolled_over, is_provisional)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
_WRITE_USE: Final = (
    "INSERT OR REPLACE INTO budget_uses (network, budget, subject, used, without_mptcp) VALUES (?, ?, ?, ?, ?)"
)
_WRITE_ADDITION: Final = (
    "INSERT OR REPLACE INTO budget_additions (network, budget, subject, additions) VALUES (?, ?, ?, ?)"
)
# A later version may have more columns.
_READ_PERIODS: Final = "SELECT network, budget, NULL, start, end, rolled_over, is_provisional FROM budget_periods"
_READ_USES: Final = "SELECT network, budget, subject, used, without_mptcp FROM budget_uses"
_READ_ADDITIONS: Final = "SELECT network, budget, subject, additions FROM budget_additions"
_MOST_BYTES: Final = 2**62

_T = TypeVar("_T")


class StoredPeriod(NamedTuple):
    """The present period of a budget.

    `rolled_over`: what was not used of the one before is added to it. `is_provisional`: it began by a clock that was
    not synchronised.
    """

    period: Period
    rolled_over: bool = False
    is_provisional: bool = False


@dataclass(frozen=True, slots=True)
class StoredAccount:
    """A budget as it is stored: its present period, and of each subject what it has used and what was added."""

    period: StoredPeriod
    uses: Mapping[Subject, Use] = field(default_factory=dict)
    additions: Mapping[Subject, tuple[Addition, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LedgerChanges:
    """What has changed since the last writing.

    `periods` have begun, the first or another, and end what was used before. `uses` and `additions` replace those of
    their subjects.
    """

    periods: Mapping[AccountKey, StoredPeriod] = field(default_factory=dict)
    uses: Mapping[AccountKey, Mapping[Subject, Use]] = field(default_factory=dict)
    additions: Mapping[AccountKey, Mapping[Subject, tuple[Addition, ...]]] = field(default_factory=dict)


def write_changes(database: sqlite3.Connection, changes: LedgerChanges) -> None:
    """Write them in the present transaction. Raises sqlite3.Error."""
    database.executemany("DELETE FROM budget_uses WHERE network = ? AND budget = ?", changes.periods)
    periods = ((*key, *period, *flags) for key, (period, *flags) in changes.periods.items())
    database.executemany(_WRITE_PERIOD, periods)
    uses = (
        (*key, _text(subject), *use) for key, by_subject in changes.uses.items() for subject, use in by_subject.items()
    )
    database.executemany(_WRITE_USE, uses)
    additions = [
        (*key, _text(subject), present)
        for key, by_subject in changes.additions.items()
        for subject, present in by_subject.items()
    ]
    gone = [row[:3] for row in additions if not row[3]]
    database.executemany("DELETE FROM budget_additions WHERE network = ? AND budget = ? AND subject = ?", gone)
    left = [(*row[:3], json.dumps(row[3])) for row in additions if row[3]]
    database.executemany(_WRITE_ADDITION, left)


def read_accounts(database: sqlite3.Connection) -> tuple[dict[AccountKey, StoredAccount], int]:
    """All that is stored, and how many rows were not what is written here. Raises sqlite3.Error."""
    uses, bad_uses = _read(database, _READ_USES, _use)
    additions, bad_additions = _read(database, _READ_ADDITIONS, _additions)
    periods, bad_periods = _read(database, _READ_PERIODS, _period)
    accounts = {
        key: StoredAccount(by_subject[None], uses.get(key, {}), additions.get(key, {}))
        for key, by_subject in periods.items()
    }
    return accounts, bad_uses + bad_additions + bad_periods


def _read(
    database: sqlite3.Connection, query: str, parse: Callable[..., _T]
) -> tuple[dict[AccountKey, dict[Subject, _T]], int]:
    """The rows by account and subject, without those that cannot be parsed; and how many these are."""
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
