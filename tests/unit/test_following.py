"""The daemon's table source follows the sniffer's published table over a socket, whatever happens to it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from examples import connection, subflow
from polling import eventually

from mptcp_sniffer.publish import PublishedTable
from mptcp_sniffer.tracker import TableChange
from mptcp_throttle.model import Connection, Token
from mptcp_throttle.rpc import Json, RpcServer
from mptcp_throttled.source import TableSource, TableUpdate

CONNECTIONS: Final = 10_000
HISTORY: Final = 64
CHANGES_PER_SECOND: Final = 4000
BATCH: Final = 100


def one(number: int, *, backup: bool = False) -> Connection:
    return connection(number, subflow("10.1.0.2", number % 65536), subflow("10.2.0.2", number % 65536, backup=backup))


@contextmanager
def churned(table: PublishedTable) -> Iterator[None]:
    """Inside the block, the table has that many changes; only one in a hundred is the end of a connection."""
    stopping = threading.Event()

    def churn() -> None:
        priority, ends = itertools.cycle([True, False]), itertools.count()
        due = time.monotonic()
        while not stopping.wait(max(due - time.monotonic(), 0.0)):
            due += BATCH / CHANGES_PER_SECOND
            last = CONNECTIONS - 1
            changes = [TableChange(Token(last), one(last, backup=next(priority))) for _ in range(BATCH - 1)]
            table.publish([*changes, TableChange(Token(next(ends)), None)])

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def test_source_has_a_large_table_soon_while_it_changes_all_the_time(tmp_path: Path) -> None:
    table = PublishedTable(HISTORY)
    table.publish(TableChange(Token(number), one(number)) for number in range(CONNECTIONS))
    methods: dict[str, Callable[..., Json]] = {"snapshot": table.snapshot, "changes": table.changes}
    server = RpcServer(tmp_path / "sniffer.sock", methods, None)
    source = TableSource(tmp_path / "sniffer.sock", lambda: None)
    followed: TableUpdate | None = None

    def is_followed(revision: int) -> bool:
        nonlocal followed
        update = source.take()
        if update is not None:
            followed = update if followed is None else followed.then(update)
        return followed is not None and followed.problem is None and followed.revision >= revision

    with churned(table):
        source.start()
        eventually(lambda: is_followed(CONNECTIONS + 1), "the first table")
    eventually(lambda: is_followed(table.position()["revision"]), "the last change")
    source.stop()
    table.close()
    server.close()
    assert followed is not None
    assert followed.connections == {
        Token(int(item["token"], 16)): one(int(item["token"], 16), backup=item["subflows"][1]["backup"])
        for part in parts_of(table)
        for item in part["connections"]
    }


def parts_of(table: PublishedTable) -> Iterator[Json]:
    after = -1
    while after is not None:
        yield (part := table.snapshot(after))
        after = part["next"]
