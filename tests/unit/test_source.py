from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest
from examples import connection, subflow
from worlds import ManualClock

from mptcp_throttle.features import FeatureName
from mptcp_throttle.model import RateKind, format_token
from mptcp_throttle.rpc import Json, RpcError
from mptcp_throttle.rpc.wire import encode_connection
from mptcp_throttle.units import Rate
from mptcp_throttled.control.source import Call, Follower, Haste, TableUpdate, Wait, haste
from mptcp_throttled.vocabulary.features import FeatureState
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import PresentTerms, Term

ONE, TWO = connection(1, subflow("10.1.0.2")), connection(2, subflow("10.1.0.3"))
SNAPSHOT = {"epoch": "e", "revision": 5, "connections": [encode_connection(ONE)], "next": None}


def gone() -> Json:
    raise RpcError("no service answers")


def after(clock: ManualClock, seconds: float, answer: Callable[[], Json]) -> Callable[[], Json]:
    """An answer that takes some seconds."""

    def later() -> Json:
        clock.now += seconds
        return answer()

    return later


def changes(revision: int, **connections: Json) -> Json:
    items = [{"token": token.removeprefix("t"), "connection": data} for token, data in connections.items()]
    return {"epoch": "e", "revision": revision, "changes": items, "more": False}


class Scripted:
    """A follower of a sniffer that gives these answers, one for each call, and in the end none.

    `asked` are the calls, `pauses` the seconds between them.
    """

    def __init__(self, answers: Iterable[Json | Callable[[], Json]], clock: ManualClock | None = None) -> None:
        self._answers = iter(answers)
        self._clock = ManualClock() if clock is None else clock
        self.updates: list[TableUpdate] = []
        self.asked: list[Call] = []
        self.pauses: list[float] = []
        self.follower = Follower(self._arrived, self._clock)

    def _arrived(self) -> None:
        update = self.follower.take()
        assert update is not None
        self.updates.append(update)

    def follow(self) -> None:
        """Until the follower knows that no service answers any more."""
        actions = self.follower.actions()
        action = next(actions)
        while True:
            if not isinstance(action, Call):
                if isinstance(action, Wait):
                    self.pauses.append(action.seconds)
                action = actions.send(None)
                continue
            self.asked.append(action)
            try:
                answer = next(self._answers)
            except StopIteration:
                actions.throw(RpcError("no service answers"))
                return
            try:
                answered = answer() if callable(answer) else answer
            except RpcError as error:
                action = actions.throw(error)
            else:
                action = actions.send(answered)


def delivered(answers: list[Json | Callable[[], Json]]) -> list[TableUpdate]:
    """The updates of a follower that is given these answers."""
    scripted = Scripted(answers)
    scripted.follow()
    assert (scripted.follower.empty, scripted.follower.take()) == (True, None)
    return scripted.updates


def test_source_delivers_the_snapshot_and_then_changes() -> None:
    answers: list[Json | Callable[[], Json]] = [
        SNAPSHOT,
        changes(5),
        changes(5),
        changes(7, **{f"t{format_token(TWO.token)}": encode_connection(TWO), f"t{format_token(ONE.token)}": None}),
    ]
    updates = delivered(answers)
    assert [(update.revision, dict(update.connections)) for update in updates[:2]] == [
        (5, {ONE.token: ONE}),
        (7, {TWO.token: TWO, ONE.token: None}),
    ]
    assert [update.whole for update in updates[:2]] == [True, False]


def test_source_takes_all_parts_of_the_changes_before_it_delivers() -> None:
    one, two = (f"t{format_token(one.token)}" for one in (ONE, TWO))
    parts = [{**changes(6, **{two: encode_connection(TWO)}), "more": True}, changes(7, **{one: None})]
    update, *_ = delivered([SNAPSHOT, *parts])
    assert (update.revision, dict(update.connections), update.whole) == (7, {TWO.token: TWO}, True)


def test_source_with_a_spacing_waits_between_calls_under_load() -> None:
    clock = ManualClock(10.0)
    ended = {f"t{format_token(ONE.token)}": None}

    def later(revision: int) -> Json:
        clock.now += 0.01
        return changes(revision, **ended)

    many = [partial(later, revision) for revision in range(6, 10)]
    scripted = Scripted([SNAPSHOT, changes(5), *many], clock)
    scripted.follower.spacing = 0.05
    scripted.follow()
    # The clock does not run during the pauses, so each is longer.
    assert scripted.pauses == pytest.approx([0.0, 0.04, 0.08, 0.12])


def test_source_asks_with_its_present_patience() -> None:
    def answer() -> Json:
        scripted.follower.patience = float(len(scripted.asked))
        return SNAPSHOT if len(scripted.asked) == 1 else changes(5)

    scripted = Scripted([answer] * 5)
    scripted.follow()
    assert [call.arguments[3] for call in scripted.asked[2:]] == [2.0, 3.0, 4.0, 5.0]


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


def test_source_told_to_resynchronise_takes_a_snapshot() -> None:
    later = {"epoch": "f", "revision": 1, "connections": [], "next": None}
    resync = {"resync": True}
    none = {**changes(1), "epoch": "f"}
    updates = delivered([SNAPSHOT, resync, SNAPSHOT, changes(5), resync, later, none])
    assert [(update.epoch, len(update.connections)) for update in updates[:2]] == [("e", 1), ("f", 0)]


def test_source_merges_snapshot_parts_and_changes_into_one_table() -> None:
    answers: list[Json | Callable[[], Json]] = [
        {**SNAPSHOT, "next": ONE.token},
        {**SNAPSHOT, "revision": 6, "connections": [encode_connection(TWO)]},
        changes(7, **{f"t{format_token(ONE.token)}": None}),
    ]
    update, *_ = delivered(answers)
    assert (update.revision, dict(update.connections), update.whole) == (7, {TWO.token: TWO}, True)


def test_source_delivers_an_empty_table_once_the_sniffer_is_gone() -> None:
    clock = ManualClock()
    for_less, for_a_second = after(clock, 0.9, gone), after(clock, 0.1, gone)
    table = SNAPSHOT, changes(5)
    scripted = Scripted([gone, *table, changes(5), gone, for_less, for_a_second, gone, *table, changes(5)], clock)
    scripted.follow()
    assert [bool(update.connections) for update in scripted.updates] == [False, True, False, True]
    assert scripted.updates[0].problem == scripted.updates[2].problem == "no service answers"


def test_sniffer_that_is_back_within_a_second_frees_nothing() -> None:
    clock = ManualClock()
    for_less = after(clock, 0.9, gone)
    table = {**SNAPSHOT, "epoch": "f"}, {**changes(5), "epoch": "f"}
    polled = {**changes(5), "epoch": "f"}
    scripted = Scripted([SNAPSHOT, changes(5), changes(5), gone, for_less, *table, polled, gone, for_less], clock)
    scripted.follow()
    assert [(update.epoch, bool(update.connections)) for update in scripted.updates] == [("e", True), ("f", True)]


def test_call_without_an_answer_frees_when_it_has_failed() -> None:
    clock = ManualClock()
    scripted = Scripted([SNAPSHOT, changes(5), changes(5), after(clock, 3.0, gone), SNAPSHOT, changes(5)], clock)
    scripted.follow()
    assert [bool(update.connections) for update in scripted.updates[:3]] == [True, False, True]


def test_long_poll_that_always_fails_is_reported() -> None:
    clock = ManualClock()
    table = SNAPSHOT, changes(5), after(clock, 0.4, gone)
    scripted = Scripted([SNAPSHOT, changes(5), changes(5), gone, *table, *table, *table], clock)
    scripted.follow()
    assert "no service answers" in [update.problem for update in scripted.updates]


@pytest.mark.parametrize(
    "answer", [{"nonsense": 1}, {"epoch": "e", "revision": 6, "changes": [{"token": "xyz"}]}, None]
)
def test_source_delivers_an_empty_table_after_a_second_of_invalid_answers(answer: Json) -> None:
    clock = ManualClock()
    scripted = Scripted([SNAPSHOT, changes(5), changes(5), answer, after(clock, 1.0, lambda: answer)], clock)
    scripted.follow()
    assert [bool(update.connections) for update in scripted.updates[:2]] == [True, False]


def test_updates_are_merged_until_they_are_taken() -> None:
    whole = TableUpdate("e", 5, {ONE.token: ONE}, True, None)
    ended = TableUpdate("e", 6, {ONE.token: None}, False, None)
    opened = TableUpdate("e", 7, {TWO.token: TWO}, False, None)
    assert whole.then(ended).then(opened) == TableUpdate("e", 7, {TWO.token: TWO}, True, None)
    assert ended.then(opened) == TableUpdate("e", 7, {ONE.token: None, TWO.token: TWO}, False, None)
    assert ended.then(TableUpdate(problem="gone")) == TableUpdate(problem="gone")
