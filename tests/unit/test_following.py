"""The daemon's table source follows the sniffer's published table over a socket, whatever happens to it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from examples import connection, subflow
from polling import eventually

from mptcp_sniffer.publish import PublishedTable
from mptcp_sniffer.tracker import TableChange
from mptcp_throttle.model import Connection, Token
from mptcp_throttle.rpc import Json, RpcServer
from mptcp_throttled.control.source import Follower, TableSource, TableUpdate
from mptcp_throttled.vocabulary.clock import Clock

CONNECTIONS: Final = 10_000
HISTORY: Final = 64
LONGER_THAN_A_RETRY: Final = 0.6
"""Seconds: the source asks again 0.2 s after a failure."""


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
    follower = Follower(lambda: None, Clock())
    source = TableSource(tmp_path / "sniffer.sock", follower)
    followed: TableUpdate | None = None

    def is_followed(revision: int) -> bool:
        nonlocal followed
        update = follower.take()
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


def test_source_stops_while_a_call_is_unanswered(tmp_path: Path) -> None:
    asked, released = threading.Event(), threading.Event()

    def snapshot() -> Json:
        asked.set()
        assert released.wait(30)
        return {}

    server = RpcServer(tmp_path / "sniffer.sock", {"snapshot": snapshot}, None)
    arrived: list[bool] = []
    follower = Follower(lambda: arrived.append(True), Clock())
    source = TableSource(tmp_path / "sniffer.sock", follower)
    source.start()
    eventually(asked.is_set, "a call")
    source.stop()
    assert (source.is_alive(), arrived, follower.take()) == (False, [], None)
    released.set()
    server.close()


def test_part_of_a_table_that_is_given_up_is_waited_for(tmp_path: Path) -> None:
    counting, running, most, tables = threading.Lock(), 0, 0, 0

    def snapshot(part: Json = None) -> Json:
        nonlocal running, most, tables
        with counting:
            running += 1
            most = max(most, running)
            tables += part is None
        if part is not None:
            time.sleep(LONGER_THAN_A_RETRY)
        with counting:
            running -= 1
        return {"epoch": "e", "revision": 1, "connections": [{"damaged": True}], "next": 1 if part is None else None}

    server = RpcServer(tmp_path / "sniffer.sock", {"snapshot": snapshot}, None)
    follower = Follower(lambda: None, Clock())
    source = TableSource(tmp_path / "sniffer.sock", follower)
    source.start()
    eventually(lambda: tables == 3, "two tables given up")
    source.stop()
    server.close()
    assert most == 1
    update = follower.take()
    assert update is not None
    assert update.problem is not None
