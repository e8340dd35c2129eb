import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import examples
import pytest
from examples import ends, subflow
from polling import eventually

from mptcp_sniffer.publish import PublishedTable
from mptcp_sniffer.tracker import TableChange
from mptcp_throttle.model import Connection, Subflow, Token
from mptcp_throttle.rpc import Json
from mptcp_throttle.rpc.wire import decode_connection, encode_connection


def connection(number: int, port: int = 1) -> Connection:
    return examples.connection(number, subflow("10.1.0.2", port, at=12.5))


def opened(number: int, port: int = 1) -> TableChange:
    return TableChange(Token(number), connection(number, port))


def ended(number: int) -> TableChange:
    return TableChange(Token(number), None)


def test_connection_is_equal_after_encoding_and_decoding() -> None:
    original = Connection(
        Token(0xAB), 0, 8080, (*connection(0xAB).subflows, Subflow(ends("fd00:1::2", 5), 3, True, False, 1.25))
    )
    assert encode_connection(original)["token"] == "000000ab"
    assert decode_connection(encode_connection(original)) == original


def test_changes_hold_the_last_state_since_the_readers_revision() -> None:
    table = PublishedTable(history=16)
    table.publish([opened(1), opened(2)])
    start = table.snapshot()
    table.publish([opened(1), opened(1, port=7), ended(2)])
    answer = table.changes(start["epoch"], start["revision"], 0)
    assert answer["revision"] == start["revision"] + 3
    assert {change["token"]: change["connection"] for change in answer["changes"]} == {
        "00000001": encode_connection(connection(1, port=7)),
        "00000002": None,
    }
    assert table.changes(answer["epoch"], answer["revision"], 0)["changes"] == []
    assert [item["token"] for item in table.snapshot()["connections"]] == ["00000001"]


def test_snapshot_parts_and_later_changes_give_the_table() -> None:
    table = PublishedTable(history=16)
    table.publish([opened(number) for number in range(10_000)])
    first = part = table.snapshot()
    tokens = [item["token"] for item in part["connections"]]
    while part["next"] is not None:
        assert len(part["connections"]) == 4096
        table.publish([ended(part["next"]), opened(10_000 + len(tokens))])
        part = table.snapshot(part["next"])
        tokens += [item["token"] for item in part["connections"]]
    assert tokens == sorted(set(tokens))
    changes = {c["token"]: c["connection"] for c in table.changes(first["epoch"], first["revision"], 0)["changes"]}
    assert len(changes) == 4
    gone = {token for token, connection in changes.items() if connection is None}
    assert len(set(tokens) | changes.keys()) - len(gone) == 10_000


def test_reader_beyond_the_history_must_resynchronise() -> None:
    table = PublishedTable(history=2)
    table.publish([opened(number) for number in range(4)])
    start = table.snapshot()
    table.publish([ended(0), ended(1)])
    between = table.position()
    assert len(table.changes(start["epoch"], start["revision"], 0)["changes"]) == 2
    table.publish([ended(2)])
    assert table.changes(start["epoch"], start["revision"], 0) == {"resync": True}
    assert len(table.changes(between["epoch"], between["revision"], 0)["changes"]) == 1
    table.publish([opened(0), ended(3), opened(2)])
    assert len(table.changes(between["epoch"], between["revision"], 0)["changes"]) == 3


def test_reader_is_told_the_last_change_of_each_connection_alone() -> None:
    table = PublishedTable(history=16)
    table.publish([opened(1), opened(2)])
    start = table.snapshot()
    for port in range(1, 20_001):
        table.publish([opened(1, port), opened(2, port), ended(2)])
    answer = table.changes(start["epoch"], start["revision"], 0)
    assert [change["token"] for change in answer["changes"]] == ["00000001", "00000002"]
    assert answer["changes"][0]["connection"] == encode_connection(connection(1, 20_000))
    assert answer["changes"][1]["connection"] is None
    assert (answer["revision"], answer["more"]) == (start["revision"] + 60_000, False)


def test_connection_that_ends_before_a_reader_is_told_of_it_is_no_change() -> None:
    table = PublishedTable(history=16)
    start = table.snapshot()
    table.publish([opened(1), opened(2), ended(1), ended(3)])
    answer = table.changes(start["epoch"], start["revision"], 0)
    assert [change["token"] for change in answer["changes"]] == ["00000002"]


def test_connection_is_left_out_until_it_is_as_old_as_the_readers_patience() -> None:
    table = PublishedTable(history=16)
    start = table.snapshot()
    table.publish([opened(1)])
    young = table.changes(start["epoch"], start["revision"], 0, 5.0)
    assert young["changes"] == []
    began = time.monotonic()
    answer = table.changes(young["epoch"], young["revision"], 5.0, 0.2)
    assert time.monotonic() - began < 4
    assert [change["token"] for change in answer["changes"]] == ["00000001"]


def test_connection_that_comes_while_a_reader_waits_is_told_in_time() -> None:
    table = PublishedTable(history=16)
    start = table.snapshot()
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        waiting = pool.submit(table.changes, start["epoch"], start["revision"], 5.0, 0.2)
        eventually(lambda: table._waiting[False] == 1, "a reader that waits")
        table.publish([opened(1)])
        assert [change["token"] for change in waiting.result()["changes"]] == ["00000001"]
        assert time.monotonic() - began < 4


def test_reader_with_patience_is_not_woken_by_a_connection_that_ends_soon() -> None:
    table = PublishedTable(history=16)
    start = table.snapshot()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(table.changes, start["epoch"], start["revision"], 5.0, 5.0)
        eventually(lambda: table._waiting[False] == 1, "a reader that waits")
        for number in range(100):
            table.publish([opened(number), opened(number, port=2)])
            table.publish([ended(number)])
        assert not waiting.done()
        table.close()
        assert waiting.result()["changes"] == []


def test_reader_with_patience_is_told_at_once_of_what_it_knows() -> None:
    table = PublishedTable(history=16)
    table.publish([opened(1), opened(2)])
    answer = table.snapshot()
    table.publish([opened(3), opened(1, port=7)])
    for change, expected in ((ended(1), encode_connection(connection(1, port=7))), (opened(2), None)):
        answer = table.changes(answer["epoch"], answer["revision"], 5.0, 5.0)
        assert [(told["token"], told["connection"]) for told in answer["changes"]] == [("00000001", expected)]
        table.publish([change])
    table.publish([opened(1)])
    answer = table.changes(answer["epoch"], answer["revision"], 5.0, 5.0)
    assert [told["token"] for told in answer["changes"]] == ["00000002", "00000001"], "1 is known from before its end"


def test_connection_is_known_to_all_readers_when_one_is_told_of_it() -> None:
    table = PublishedTable(history=16)
    start = table.snapshot()
    table.publish([opened(1)])
    assert not table.knows(Token(1))
    table.snapshot()
    assert table.knows(Token(1))
    assert not table.knows(Token(2))
    for patience in (5.0, 0.0):
        answer = table.changes(start["epoch"], start["revision"], 0, patience)
        assert [change["token"] for change in answer["changes"]] == ["00000001"]


def test_reader_far_behind_is_told_changes_in_parts() -> None:
    table = PublishedTable(history=6000)
    position = table.position()
    table.publish([change for number in range(5000) for change in (opened(number), opened(5000 + number))])
    table.snapshot()
    table.publish([ended(number) for number in range(5000)])
    told: dict[str, Json] = {}
    parts = 0
    is_behind = True
    while is_behind:
        answer = table.changes(position["epoch"], position["revision"], 0)
        assert len(answer["changes"]) <= 4096
        told.update((change["token"], change["connection"]) for change in answer["changes"])
        position, is_behind, parts = answer, answer["more"], parts + 1
        table.publish([opened(20_000 + parts)] if is_behind else [])
    assert parts == 3
    assert {token for token, connection in told.items() if connection is not None} == {
        connection["token"] for part in (-1, 4096 + 4999) for connection in table.snapshot(part)["connections"]
    }
    assert len(told) == 10_002


def test_reader_of_another_epoch_or_revision_must_resynchronise() -> None:
    table = PublishedTable(history=2)
    table.publish([opened(1)])
    before = table.position()
    assert table.changes("elsewhere", 0, 0) == {"resync": True}
    assert table.changes(before["epoch"], 5, 0) == {"resync": True}
    table.reset()
    assert table.snapshot()["connections"] == []
    assert table.changes(before["epoch"], before["revision"], 0) == {"resync": True}


def test_reader_beyond_the_bound_of_waiting_ones_is_answered_at_once() -> None:
    table = PublishedTable(history=16)
    epoch, revision = table.position()["epoch"], table.position()["revision"]
    with ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(table.changes, epoch, revision, 5) for _ in range(16)]
        eventually(lambda: table._waiting[False] == 16, "16 readers that wait")
        began = time.monotonic()
        assert table.changes(epoch, revision, 5)["changes"] == []
        assert time.monotonic() - began < 4
        daemons = pool.submit(table.changes, epoch, revision, 5, to_daemon=True)
        eventually(lambda: table._waiting[True] == 1, "the daemon waiting, too")
        table.close()
        assert daemons.result()["changes"] == []
        assert all(reader.result()["changes"] == [] for reader in waiting)


@pytest.mark.parametrize("timeout", ["soon", None, [], math.nan, -math.inf])
def test_reader_with_a_wrong_timeout_takes_no_place(timeout: Any) -> None:  # noqa: ANN401
    table = PublishedTable(history=16)
    position = table.position()
    with suppress(TypeError, ValueError):
        table.changes(position["epoch"], position["revision"], timeout)
    assert table._waiting == {False: 0, True: 0}


def test_reader_that_waits_is_woken_by_a_change_and_by_close() -> None:
    table = PublishedTable(history=2)
    position = table.position()
    for wake in (lambda: table.publish([opened(1)]), table.close):
        position = table.position()
        threading.Timer(0.05, wake).start()
        began = time.monotonic()
        table.changes(position["epoch"], position["revision"], 20)
        assert time.monotonic() - began < 10
