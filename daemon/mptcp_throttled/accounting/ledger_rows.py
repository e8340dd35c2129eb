"""The rows of the ledger of budgets in the database of the history, and what they mean."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, NamedTuple

from mptcp_throttle.periods import Period
from mptcp_throttled.vocabulary.budgets import Subject

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS budget_periods (
    network TEXT, budget TEXT, start REAL, end REAL, PRIMARY KEY (network, budget)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS budget_uses (
    network TEXT, budget TEXT, subject TEXT, used INTEGER, other INTEGER, PRIMARY KEY (network, budget, subject)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS budget_extras (
    network TEXT, budget TEXT, subject TEXT, extras TEXT, PRIMARY KEY (network, budget, subject)
) WITHOUT ROWID;
"""

_OF_NETWORK: Final = ""


class AccountKey(NamedTuple):
    """A budget (`Budget.key`) of a network, by its name."""

    network: str
    budget: str


class Use(NamedTuple):
    """How many bytes of a budget are used, and how many of these by TCP without MPTCP, which cannot be throttled."""

    used: int = 0
    other: int = 0


class Extra(NamedTuple):
    """What is left of `amount` bytes that were added to a budget; `until`, in seconds since the epoch, they hold.

    None: until they are used.
    """

    amount: int
    left: int
    until: float | None


@dataclass(frozen=True, slots=True)
class StoredAccount:
    """A budget as it is stored: its present period, and of each subject what it has used and what was added."""

    period: Period
    uses: Mapping[Subject, Use] = field(default_factory=dict)
    extras: Mapping[Subject, tuple[Extra, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LedgerChanges:
    """What has changed since the last writing.

    `periods` have begun, and end what was used before. `uses` and `extras` replace those of their subjects.
    """

    periods: Mapping[AccountKey, Period] = field(default_factory=dict)
    uses: Mapping[AccountKey, Mapping[Subject, Use]] = field(default_factory=dict)
    extras: Mapping[AccountKey, Mapping[Subject, tuple[Extra, ...]]] = field(default_factory=dict)


def write_changes(database: sqlite3.Connection, changes: LedgerChanges) -> None:
    """Write them in the present transaction. Raises sqlite3.Error."""
    database.executemany("DELETE FROM budget_uses WHERE network = ? AND budget = ?", changes.periods)
    periods = ((*key, *period) for key, period in changes.periods.items())
    database.executemany("INSERT OR REPLACE INTO budget_periods VALUES (?, ?, ?, ?)", periods)
    uses = (
        (*key, _text(subject), *use) for key, by_subject in changes.uses.items() for subject, use in by_subject.items()
    )
    database.executemany("INSERT OR REPLACE INTO budget_uses VALUES (?, ?, ?, ?, ?)", uses)
    extras = [
        (*key, _text(subject), present)
        for key, by_subject in changes.extras.items()
        for subject, present in by_subject.items()
    ]
    gone = [row[:3] for row in extras if not row[3]]
    database.executemany("DELETE FROM budget_extras WHERE network = ? AND budget = ? AND subject = ?", gone)
    left = [(*row[:3], json.dumps(row[3])) for row in extras if row[3]]
    database.executemany("INSERT OR REPLACE INTO budget_extras VALUES (?, ?, ?, ?)", left)


def read_accounts(database: sqlite3.Connection) -> dict[AccountKey, StoredAccount]:
    """All that is stored. Raises sqlite3.Error, and ValueError or TypeError if it is not what was written."""
    uses: dict[AccountKey, dict[Subject, Use]] = {}
    for network, budget, subject, *use in database.execute("SELECT * FROM budget_uses"):
        uses.setdefault(AccountKey(network, budget), {})[_subject(subject)] = Use(*use)
    extras: dict[AccountKey, dict[Subject, tuple[Extra, ...]]] = {}
    for network, budget, subject, present in database.execute("SELECT * FROM budget_extras"):
        extras.setdefault(AccountKey(network, budget), {})[_subject(subject)] = _extras(json.loads(present))
    return {
        (key := AccountKey(network, budget)): StoredAccount(Period(*period), uses.get(key, {}), extras.get(key, {}))
        for network, budget, *period in database.execute("SELECT * FROM budget_periods")
    }


def _extras(stored: Iterable[tuple[int, int, float | None]]) -> tuple[Extra, ...]:
    return tuple(Extra(*each) for each in stored)


def _text(subject: Subject) -> str:
    return _OF_NETWORK if subject is None else str(subject)


def _subject(text: str) -> Subject:
    return None if text == _OF_NETWORK else ip_address(text)
