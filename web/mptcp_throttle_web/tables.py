"""Answers as tables of comma-separated values: a row for each item, `a.b` for the key `b` of `a`."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from io import StringIO
from typing import Final

from mptcp_throttle.rpc import Json

# Spreadsheets take a text that begins with one of these for a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


_Rows = Callable[[Json], Iterable[Json]]
"""The rows of an answer."""


def as_json(answer: Json) -> bytes:
    """The answer itself."""
    return json.dumps(answer, separators=(",", ":")).encode()


def _as_csv(rows_of: _Rows, answer: Json) -> bytes:
    rows = [dict(_flat(row)) for row in rows_of(answer)]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return text.getvalue().encode()


def _cell(value: Json) -> Json:
    match value:
        case str():
            return f"'{value}" if value.startswith(_FORMULA) else value
        case bool():
            return "true" if value else "false"
        case list():
            return json.dumps(value)
    return value


def _flat(row: Mapping[str, Json], before: str = "") -> Iterator[tuple[str, Json]]:
    for key, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _clients(answer: Json) -> Iterator[Json]:
    """A row for each client and network."""
    for client in answer["clients"]:
        of_client = {key: value for key, value in client.items() if key != "networks"}
        for network in client["networks"]:
            yield {**of_client, "network": network}


def _history(answer: Json) -> Iterator[Json]:
    columns = [column for column, values in answer.items() if isinstance(values, list)]
    for values in zip(*(answer[column] for column in columns), strict=True):
        yield dict(zip(columns, values, strict=True))


def _week(answer: Json) -> Iterator[Json]:
    for network in answer["networks"]:
        for interval in network["intervals"]:
            yield {"network": network["name"], **interval}


def _items(key: str) -> Callable[[Json], Iterable[Json]]:
    """A row for each item of a list."""
    return lambda answer: answer[key]


_ROWS: Final[Mapping[str, _Rows]] = {
    "budgets": _items("budgets"),
    "client": _items("subflows"),
    "clients": _clients,
    "history": _history,
    "networks": _items("networks"),
    "saved": _items("periods"),
    "timeline": _items("events"),
    "waiting": _items("hours"),
    "week": _week,
}

TABLES: Final = {name: partial(_as_csv, rows_of) for name, rows_of in _ROWS.items()}
"""What makes the table of an answer of each kind."""
