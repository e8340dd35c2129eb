"""Columns that a table of an earlier version of the database lacks."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping


def add_missing_columns(database: sqlite3.Connection, table: str, columns: Mapping[str, str]) -> None:
    """Add the columns that a table lacks; `columns` has the type of each, and its default. Raises sqlite3.Error."""
    present = {name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")}
    for name, type_ in columns.items():
        if name not in present:
            database.execute(f"ALTER TABLE {table} ADD COLUMN {name} {type_}")
