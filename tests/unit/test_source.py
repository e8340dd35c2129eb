from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from examples import connection, subflow

from mptcp_throttle.features import FeatureName
from mptcp_throttle.model import RateKind, format_token
from mptcp_throttle.rpc import Json, RpcError
from mptcp_throttle.rpc.wire import encode_connection
from mptcp_throttle.units import Rate
from mptcp_throttled.control.source import Haste, TableSource, TableUpdate, haste
from mptcp_throttled.vocabulary.features import FeatureState
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import PresentTerms, Term

ONE, TWO = connection(1, subflow("10.1.0.2")), connection(2, subflow("10.1.0.3"))
SNAPSHOT = {"epoch": "e", "revision": 5, "connections": [encode_connection(ONE)], "next": None}


def gone() -> Json:
    raise RpcError("no service answers")


def changes(revision: int, **connections: Json) -> Json:
    items = [{"token": token.removeprefix("t"), "connection": data} for token, data in connections.items()]
    return {"epoch": "e", "revision": revision, "changes": items, "more": False}


def delivered(
    answers: list[Json | Callable[[], Json]], expected: int, monkeypatch: pytest.MonkeyPatch
) -> list[TableUpdate]:
    """The updates that a source receives when the sniffer gives these answers, one for each call, and then none."""
    updates: list[TableUpdate] = []
    enough = threading.Event()

    def arrived() -> None:
        update = source.take()
        assert update is not None
        updates.append(update)
        if len(updates) == expected:
            enough.set()

    source = TableSource(Path("/nonexistent/sniffer.sock"), arrived)
    calls = iter(answers)

    def call(*_: object) -> Json:
        answer = next(calls, gone)
        return answer() if callable(answer) else answer

    monkeypatch.setattr(source._client, "call", call)
    source.start()
    assert enough.wait(10)
    source.stop()
    assert (source.empty, source.take()) == (True, None)
    return updates


def test_source_delivers_the_snapshot_and_then_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Json | Callable[[], Json]] = [
        SNAPSHOT,
        changes(5),
        changes(5),
        changes(7, **{f"t{format_token(TWO.token)}": encode_connection(TWO), f"t{format_token(ONE.token)}": None}),
    ]
    updates = delivered(answers, 2, monkeypatch)
    assert [(update.revision, dict(update.connections)) for update in updates[:2]] == [
        (5, {ONE.token: ONE}),
        (7, {TWO.token: TWO, ONE.token: None}),
    ]
    assert [update.whole for update in updates[:2]] == [True, False]


def test_source_takes_all_parts_of_the_changes_before_it_delivers(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (f"t{format_token(one.token)}" for one in (ONE, TWO))
    parts = [{**changes(6, **{two: encode_connection(TWO)}), "more": True}, changes(7, **{one: None})]
    (update,) = delivered([SNAPSHOT, *parts], 1, monkeypatch)[:1]
    assert (update.revision, dict(update.connections), update.whole) == (7, {TWO.token: TWO}, True)


def test_source_with_a_spacing_waits_between_calls_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    now = itertools.count(10.0, 0.01)
    monkeypatch.setattr("mptcp_throttled.control.source.time.monotonic", lambda: next(now))
    source = TableSource(Path("/nonexistent/sniffer.sock"), lambda: None)
    source.spacing = 0.05
    one = {f"t{format_token(ONE.token)}": None}
    many = (changes(revision, **one) for revision in range(6, 10))
    answers = iter([SNAPSHOT, changes(5), *many, {"resync": True}])
    monkeypatch.setattr(source._client, "call", lambda *_: next(answers))
    monkeypatch.setattr(source._stopping, "wait", lambda seconds: waits.append(seconds))
    source._follow()
    assert waits == pytest.approx([0.0, 0.04, 0.08, 0.12])


def test_source_asks_with_its_present_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Json, ...]] = []
    answers = iter([SNAPSHOT, changes(5), changes(5), changes(5), {"resync": True}])
    source = TableSource(Path("/nonexistent/sniffer.sock"), lambda: None)

    def call(*arguments: Json) -> Json:
        asked.append(arguments)
        source.patience = float(len(asked))
        return next(answers)

    monkeypatch.setattr(source._client, "call", call)
    source._follow()
    assert [arguments[4] for arguments in asked[2:]] == [2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("paced", "steered", "kinds", "expected"),
    [
        (True, True, [RateKind.CAP], Haste(0.05, 1.0)),
        (True, True, [], Haste(0.05, 1.0)),
        (True, True, [RateKind.CAP, RateKind.LIMIT], Haste(0.05, 0.0)),
        (True, True, [RateKind.CAP, RateKind.UPLINK_CAP], Haste(0.05, 0.0)),
        (True, False, [RateKind.CAP], Haste(0.05, 0.0)),
        (False, False, [RateKind.CAP], Haste(0.0, 0.0)),
    ],
)
def test_new_connections_may_wait_while_steering_caps_alone(
    paced: bool, steered: bool, kinds: list[RateKind], expected: Haste
) -> None:
    works = {FeatureName.PACING: paced, FeatureName.STEERING: steered}
    features: dict[str, FeatureState] = {
        name: FeatureState(None if each else "no kernel program") for name, each in works.items()
    }
    terms = PresentTerms({"wifi": {}, "ethernet": dict.fromkeys(kinds, Term(Rate.parse("1mbit")))})
    assert haste(Snapshot(features=features, terms=terms)) == expected


def test_source_told_to_resynchronise_takes_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    later = {"epoch": "f", "revision": 1, "connections": [], "next": None}
    resync = {"resync": True}
    none = {**changes(1), "epoch": "f"}
    updates = delivered([SNAPSHOT, resync, SNAPSHOT, changes(5), resync, later, none], 2, monkeypatch)
    assert [(update.epoch, len(update.connections)) for update in updates[:2]] == [("e", 1), ("f", 0)]


def test_source_merges_snapshot_parts_and_changes_into_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Json | Callable[[], Json]] = [
        {**SNAPSHOT, "next": ONE.token},
        {**SNAPSHOT, "revision": 6, "connections": [encode_connection(TWO)]},
        changes(7, **{f"t{format_token(ONE.token)}": None}),
    ]
    (update, *_) = delivered(answers, 1, monkeypatch)
    assert (update.revision, dict(update.connections), update.whole) == (7, {TWO.token: TWO}, True)


def test_source_delivers_an_empty_table_whenever_the_sniffer_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = delivered([gone, SNAPSHOT, changes(5), gone, gone, SNAPSHOT, changes(5), gone], 5, monkeypatch)
    assert [bool(update.connections) for update in updates[:5]] == [False, True, False, True, False]
    assert updates[0].problem == "no service answers"


@pytest.mark.parametrize(
    "answer", [{"nonsense": 1}, {"epoch": "e", "revision": 6, "changes": [{"token": "xyz"}]}, None]
)
def test_source_delivers_an_empty_table_after_an_invalid_answer(answer: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    updates = delivered([SNAPSHOT, changes(5), answer], 2, monkeypatch)
    assert [bool(update.connections) for update in updates[:2]] == [True, False]


def test_updates_are_merged_until_they_are_taken() -> None:
    whole = TableUpdate("e", 5, {ONE.token: ONE}, True, None)
    ended = TableUpdate("e", 6, {ONE.token: None}, False, None)
    opened = TableUpdate("e", 7, {TWO.token: TWO}, False, None)
    assert whole.then(ended).then(opened) == TableUpdate("e", 7, {TWO.token: TWO}, True, None)
    assert ended.then(opened) == TableUpdate("e", 7, {ONE.token: None, TWO.token: TWO}, False, None)
    assert ended.then(TableUpdate(problem="gone")) == TableUpdate(problem="gone")
