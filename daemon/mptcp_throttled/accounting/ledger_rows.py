"""The rows of the ledger of budgets in the database of the history, and what they mean."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from mptcp_throttle.periods import Period
from mptcp_throttled.vocabulary.budgets import AccountKey, Addition, Subject, Use

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS budget_periods (
    network TEXT, budget TEXT, start REAL, end REAL, is_first INTEGER, PRIMARY KEY (network, budget)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS budget_uses (
    network TEXT, budget TEXT, subject TEXT, used INTEGER, without_mptcp INTEGER, PRIMARY KEY (network, budget, subject)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS budget_additions (
    network TEXT, budget TEXT, subject TEXT, additions TEXT, PRIMARY KEY (network, budget, subject)
) WITHOUT ROWID;
"""

_OF_NETWORK: Final = ""


@dataclass(frozen=True, slots=True)
class StoredAccount:
    """A budget as it is stored: its present period, and of each subject what it has used and what was added.

    `is_first`: no period was before.
    """

    period: Period
    is_first: bool = True
    uses: Mapping[Subject, Use] = field(default_factory=dict)
    additions: Mapping[Subject, tuple[Addition, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LedgerChanges:
    """What has changed since the last writing.

    `periods` have begun, the first or another, and end what was used before. `uses` and `additions` replace those of
    their subjects.
    """

    periods: Mapping[AccountKey, tuple[Period, bool]] = field(default_factory=dict)
    uses: Mapping[AccountKey, Mapping[Subject, Use]] = field(default_factory=dict)
    additions: Mapping[AccountKey, Mapping[Subject, tuple[Addition, ...]]] = field(default_factory=dict)


def write_changes(database: sqlite3.Connection, changes: LedgerChanges) -> None:
    """Write them in the present transaction. Raises sqlite3.Error."""
    database.executemany("DELETE FROM budget_uses WHERE network = ? AND budget = ?", changes.periods)
    periods = ((*key, *period, is_first) for key, (period, is_first) in changes.periods.items())
    database.executemany("INSERT OR REPLACE INTO budget_periods VALUES (?, ?, ?, ?, ?)", periods)
    uses = (
        (*key, _text(subject), *use) for key, by_subject in changes.uses.items() for subject, use in by_subject.items()
    )
    database.executemany("INSERT OR REPLACE INTO budget_uses VALUES (?, ?, ?, ?, ?)", uses)
    additions = [
        (*key, _text(subject), present)
        for key, by_subject in changes.additions.items()
        for subject, present in by_subject.items()
    ]
    gone = [row[:3] for row in additions if not row[3]]
    database.executemany("DELETE FROM budget_additions WHERE network = ? AND budget = ? AND subject = ?", gone)
    left = [(*row[:3], json.dumps(row[3])) for row in additions if row[3]]
    database.executemany("INSERT OR REPLACE INTO budget_additions VALUES (?, ?, ?, ?)", left)


def read_accounts(database: sqlite3.Connection) -> dict[AccountKey, StoredAccount]:
    """All that is stored. Raises sqlite3.Error, and ValueError or TypeError if it is not what was written."""
    uses: dict[AccountKey, dict[Subject, Use]] = {}
    for network, budget, subject, *use in database.execute("SELECT * FROM budget_uses"):
        uses.setdefault(AccountKey(network, budget), {})[_subject(subject)] = Use(*use)
    additions: dict[AccountKey, dict[Subject, tuple[Addition, ...]]] = {}
    for network, budget, subject, present in database.execute("SELECT * FROM budget_additions"):
        additions.setdefault(AccountKey(network, budget), {})[_subject(subject)] = _additions(json.loads(present))
    return {
        (key := AccountKey(network, budget)): StoredAccount(
            Period(start, end), bool(is_first), uses.get(key, {}), additions.get(key, {})
        )
        for network, budget, start, end, is_first in database.execute("SELECT * FROM budget_periods")
    }


def _additions(stored: Iterable[tuple[int, int, float | None]]) -> tuple[Addition, ...]:
    return tuple(Addition(*each) for each in stored)


def _text(subject: Subject) -> str:
    return _OF_NETWORK if subject is None else str(subject)


def _subject(text: str) -> Subject:
    return None if text == _OF_NETWORK else ip_address(text)
