"""The daemon's table source follows the sniffer's published table over a socket, whatever happens to it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from examples import connection, subflow
from polling import eventually

from mptcp_sniffer.publish import PublishedTable
from mptcp_sniffer.tracker import TableChange
from mptcp_throttle.model import Connection, Token
from mptcp_throttle.rpc import Json, RpcServer
from mptcp_throttled.control.source import TableSource, TableUpdate

CONNECTIONS: Final = 10_000
HISTORY: Final = 64


def made(number: int, *, backup: bool = False) -> Connection:
    return connection(number, subflow("10.1.0.2", number % 65536), subflow("10.2.0.2", number % 65536, backup=backup))


class ChangingTable:
    """A table that changes before each request for it is answered, until `settle`."""

    def __init__(self) -> None:
        self.published = PublishedTable(HISTORY)
        self.published.publish(TableChange(Token(number), made(number)) for number in range(CONNECTIONS))
        self._changing, self._settled = threading.Lock(), False
        self._priorities, self._ends = itertools.cycle([True, False]), itertools.count()

    def answering(self, method: Callable[..., Json]) -> Callable[..., Json]:
        def answer(*arguments: Json) -> Json:
            with self._changing:
                if not self._settled:
                    self._change()
            return method(*arguments)

        return answer

    def settle(self) -> None:
        """Stop changing. A change in progress is complete when this returns."""
        with self._changing:
            self._settled = True

    def _change(self) -> None:
        """More changes than the history has room for; one of them is the end of a connection."""
        last = CONNECTIONS - 1
        changes = [TableChange(Token(last), made(last, backup=next(self._priorities))) for _ in range(2 * HISTORY)]
        self.published.publish([*changes, TableChange(Token(next(self._ends)), None)])


def test_source_has_a_large_table_while_it_changes_all_the_time(tmp_path: Path) -> None:
    changing = ChangingTable()
    table = changing.published
    methods = {"snapshot": changing.answering(table.snapshot), "changes": changing.answering(table.changes)}
    server = RpcServer(tmp_path / "sniffer.sock", methods, None)
    source = TableSource(tmp_path / "sniffer.sock", lambda: None)
    followed: TableUpdate | None = None

    def is_followed(revision: int) -> bool:
        nonlocal followed
        update = source.take()
        if update is not None:
            followed = update if followed is None else followed.then(update)
        return followed is not None and followed.problem is None and followed.revision >= revision

    source.start()
    eventually(lambda: is_followed(CONNECTIONS + 1), "the first table")
    changing.settle()
    eventually(lambda: is_followed(table.position()["revision"]), "the last change")
    source.stop()
    table.close()
    server.close()
    assert followed is not None
    assert followed.connections == {
        Token(int(item["token"], 16)): made(int(item["token"], 16), backup=item["subflows"][1]["backup"])
        for part in parts_of(table)
        for item in part["connections"]
    }


def parts_of(table: PublishedTable) -> Iterator[Json]:
    after = -1
    while after is not None:
        yield (part := table.snapshot(after))
        after = part["next"]
