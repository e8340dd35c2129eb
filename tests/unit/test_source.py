from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tables import connection, subflow

from mptcp_throttle.model import format_token
from mptcp_throttle.rpc import Json, RpcError
from mptcp_throttle.rpc.wire import encode_connection
from mptcp_throttled.source import TableSource, TableUpdate

ONE, TWO = connection(1, subflow("10.1.0.2")), connection(2, subflow("10.1.0.3"))
SNAPSHOT = {"epoch": "e", "revision": 5, "connections": [encode_connection(ONE)], "next": None}


def gone() -> Json:
    raise RpcError("no service answers")


def changes(revision: int, **connections: Json) -> Json:
    items = [{"token": token.removeprefix("t"), "connection": data} for token, data in connections.items()]
    return {"epoch": "e", "revision": revision, "changes": items}


def delivered(
    answers: list[Json | Callable[[], Json]], expected: int, monkeypatch: pytest.MonkeyPatch
) -> list[TableUpdate]:
    """What a puller delivers when the sniffer gives these answers, one for each call, and then none."""
    views: list[TableUpdate] = []
    enough = threading.Event()

    def deliver(view: TableUpdate) -> None:
        views.append(view)
        if len(views) == expected:
            enough.set()

    puller = TableSource(Path("/nonexistent/sniffer.sock"), deliver)
    calls = iter(answers)

    def call(*_: object) -> Json:
        answer = next(calls, gone)
        return answer() if callable(answer) else answer

    monkeypatch.setattr(puller._client, "call", call)
    puller.start()
    assert enough.wait(10)
    puller.stop()
    return views


def test_a_table_comes_as_the_snapshot_and_what_changed_since(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Json | Callable[[], Json]] = [
        SNAPSHOT,
        changes(5),
        changes(5),
        changes(7, **{f"t{format_token(TWO.token)}": encode_connection(TWO), f"t{format_token(ONE.token)}": None}),
    ]
    views = delivered(answers, 2, monkeypatch)
    assert [(view.revision, dict(view.connections)) for view in views[:2]] == [
        (5, {ONE.token: ONE}),
        (7, {TWO.token: TWO, ONE.token: None}),
    ]
    assert [view.whole for view in views[:2]] == [True, False]


def test_a_reader_told_to_resynchronise_takes_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    later = {"epoch": "f", "revision": 1, "connections": [], "next": None}
    resync = {"resync": True}
    none = {**changes(1), "epoch": "f"}
    views = delivered([SNAPSHOT, resync, SNAPSHOT, changes(5), resync, later, none], 2, monkeypatch)
    assert [(view.epoch, len(view.connections)) for view in views[:2]] == [("e", 1), ("f", 0)]


def test_the_parts_of_a_snapshot_and_what_changed_meanwhile_are_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Json | Callable[[], Json]] = [
        {**SNAPSHOT, "next": ONE.token},
        {**SNAPSHOT, "revision": 6, "connections": [encode_connection(TWO)]},
        changes(7, **{f"t{format_token(ONE.token)}": None}),
    ]
    (view, *_) = delivered(answers, 1, monkeypatch)
    assert (view.revision, dict(view.connections), view.whole) == (7, {TWO.token: TWO}, True)


def test_a_sniffer_that_goes_empties_the_table_each_time_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    views = delivered([gone, SNAPSHOT, changes(5), gone, gone, SNAPSHOT, changes(5), gone], 5, monkeypatch)
    assert [bool(view.connections) for view in views[:5]] == [False, True, False, True, False]
    assert views[0].problem == "no service answers"


@pytest.mark.parametrize(
    "answer", [{"nonsense": 1}, {"epoch": "e", "revision": 6, "changes": [{"token": "xyz"}]}, None]
)
def test_an_answer_that_makes_no_sense_empties_the_table(answer: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    views = delivered([SNAPSHOT, changes(5), answer], 2, monkeypatch)
    assert [bool(view.connections) for view in views[:2]] == [True, False]


def test_updates_that_came_while_nobody_looked_are_one() -> None:
    whole = TableUpdate("e", 5, {ONE.token: ONE}, True, None)
    ended = TableUpdate("e", 6, {ONE.token: None}, False, None)
    opened = TableUpdate("e", 7, {TWO.token: TWO}, False, None)
    assert whole.then(ended).then(opened) == TableUpdate("e", 7, {TWO.token: TWO}, True, None)
    assert ended.then(opened) == TableUpdate("e", 7, {ONE.token: None, TWO.token: TWO}, False, None)
    assert ended.then(TableUpdate(problem="gone")) == TableUpdate(problem="gone")
