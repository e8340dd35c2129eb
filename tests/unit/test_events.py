"""Events: what a step of the loop says, how many that may be, and what readers of the log of events see."""

from __future__ import annotations

import logging
import math
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from examples import ETHERNET, WIFI, cap, capped, client, connection, subflow
from loops import LoopOnModels

from mptcp_throttle.errors import ConfigError
from mptcp_throttle.model import Connection, FourTuple, RateKind, Token, Window
from mptcp_throttle.rpc import Json
from mptcp_throttle.rpc.wire import MAX_EVENTS
from mptcp_throttle.units import Rate
from mptcp_throttle.when import When
from mptcp_throttled.control.inbox import Message
from mptcp_throttled.control.requests import Reload
from mptcp_throttled.control.source import TableUpdate
from mptcp_throttled.reporting.event_log import KEPT_FREQUENT, KEPT_OTHERS, EventLog
from mptcp_throttled.reporting.frequent_events import PAUSE_SECONDS, Changes
from mptcp_throttled.reporting.step_events import paused
from mptcp_throttled.reporting.step_log import enforcement_event
from mptcp_throttled.vocabulary.events import FIELDS, MOST_ALIKE, Event, EventKind, coalesced, until_text
from mptcp_throttled.vocabulary.operations import AddClass
from mptcp_throttled.vocabulary.operator import Pause
from mptcp_throttled.vocabulary.snapshot import Snapshot

FAST: Final = Rate.parse("3mbit")
BERLIN: Final = ZoneInfo("Europe/Berlin")
NIGHT: Final = Window(When.parse("22:00-06:00"), {RateKind.CAP: FAST, RateKind.LIMIT: None})
MORNING: Final = Window(When.parse("06:00-09:00"), {RateKind.CAP: None})


class World(LoopOnModels):
    """A loop in which time passes and connections come and go."""

    def step(self, *joined: Connection, ended: int | None = None, after: float = 0.0) -> None:
        """Let time pass, connections join and one end, and take one step."""
        self.clock.now += after
        changes: dict[Token, Connection | None] = {each.token: each for each in joined}
        if ended is not None:
            changes[Token(ended)] = None
        self.source.update = TableUpdate("epoch", 1, changes, whole=False, problem=None)
        self.loop.step()

    def lose_sniffer(self) -> None:
        """Take a step without it."""
        self.source.update = TableUpdate("epoch", 1, {}, whole=False, problem="no answer")
        self.loop.step()


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.step()
    return world


class Reader:
    """Reads the events of a loop, each once."""

    def __init__(self, running: LoopOnModels) -> None:
        self._events = running.loop.events
        self._instance: str | None = None
        self._number = 0
        self.new()

    def new(self) -> list[Json]:
        answer = self._events.after(self._instance, self._number, 0)
        self._instance, self._number = answer["instance"], answer["latest"]
        return list(answer["events"])

    def texts(self) -> list[str]:
        return [event["text"] for event in self.new()]


# Kinds


def test_each_kind_has_an_identifier_of_its_own() -> None:
    identifiers = [UUID(hex=kind.message_id) for kind in EventKind]
    assert len({*identifiers}) == len(EventKind)
    assert [kind.message_id for kind in EventKind] == [identifier.hex for identifier in identifiers]
    assert {identifier.version for identifier in identifiers} == {4}


def test_fields_are_those_that_are_described() -> None:
    event = Event(EventKind.WINDOW_BEGAN, "text", "lte", "10.1.0.2", "schedule", "schedule night", 1e9, 3)
    assert event.fields.keys() == FIELDS.keys()
    assert event.fields["MESSAGE_ID"] == EventKind.WINDOW_BEGAN.message_id
    assert event.fields["MPTCP_UNTIL"] == "1000000000.000"
    assert Event(EventKind.PAUSED, "text").fields == EventKind.PAUSED.fields


def test_many_alike_events_of_one_moment_are_one_with_their_number() -> None:
    few = [Event(EventKind.CAP_BEGAN, str(number), "lte") for number in range(MOST_ALIKE)]
    others = [Event(EventKind.CAP_ENDED, str(number), "lte") for number in range(3000)]
    assert coalesced([*few, *others]) == [*few, replace(others[0], text="0; and 2999 more", more_events=2999)]


def test_end_on_another_day_is_shown_with_its_date() -> None:
    now = datetime(2026, 11, 28, 12, 0, tzinfo=BERLIN).timestamp()
    assert until_text(now + 3600, now, BERLIN) == ", until 13:00"
    assert until_text(now + 5 * 86400, now, BERLIN) == ", until 2026-12-03 12:00"
    assert until_text(None, now, BERLIN) == ""


# Readers


def event_log() -> EventLog:
    return EventLog(time.time)


def test_reader_is_told_each_event_once_and_in_order() -> None:
    events = event_log()
    events.keep(Event(EventKind.PAUSED, "first"))
    answer = events.after(None, 0, 0)
    events.keep(Event(EventKind.CAP_BEGAN, "second"))
    events.keep(Event(EventKind.RESUMED, "third"))
    later = events.after(answer["instance"], answer["latest"], 0)
    assert [(event["number"], event["text"]) for event in answer["events"]] == [(1, "first")]
    assert [(event["number"], event["text"]) for event in later["events"]] == [(2, "second"), (3, "third")]
    assert events.after(later["instance"], later["latest"], 0)["events"] == []


def test_events_that_clients_cause_displace_no_others() -> None:
    events = event_log()
    events.keep(Event(EventKind.PAUSED, "said by the operator"))
    for number in range(5000):
        events.keep(Event(EventKind.CAP_BEGAN, str(number)))
    kept = events.after(None, 0, 0)["events"]
    assert kept[0]["text"] == "said by the operator"
    assert [event["number"] for event in kept[1:]] == list(range(5002 - KEPT_FREQUENT, 5002))
    for _ in range(5000):
        events.keep(Event(EventKind.PAUSED, ""))
    answer = events.after(None, 0, 0)
    assert len(answer["events"]) == KEPT_FREQUENT + KEPT_OTHERS == MAX_EVENTS
    assert answer["events"][-1]["number"] == answer["latest"] == 10_001


def test_reader_of_another_instance_is_told_all() -> None:
    events = event_log()
    events.keep(Event(EventKind.PAUSED, "new"))
    answer = events.after("of the daemon before", 500, 5)
    assert [event["text"] for event in answer["events"]] == ["new"]


def test_waiting_reader_is_woken_by_an_event_and_by_the_end() -> None:
    events = event_log()
    instance = events.after(None, 0, 0)["instance"]
    with ThreadPoolExecutor(max_workers=1) as pool:
        for number, wake in enumerate((lambda: events.keep(Event(EventKind.PAUSED, "")), events.close)):
            waiting = pool.submit(events.after, instance, number, 5)
            assert not waiting.done()
            began = time.monotonic()
            wake()
            assert len(waiting.result(4)["events"]) == 1 - number
            assert time.monotonic() - began < 4


def test_readers_beyond_the_bound_are_answered_at_once() -> None:
    events = event_log()
    instance = events.after(None, 0, 0)["instance"]
    with ThreadPoolExecutor(max_workers=40) as pool:
        answers = [pool.submit(events.after, instance, 0, 5) for _ in range(40)]
        while sum(answer.done() for answer in answers) < 24:
            time.sleep(0.01)
        events.keep(Event(EventKind.PAUSED, ""))
        assert sum(bool(answer.result(4)["events"]) for answer in answers) == 16


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_reader_with_a_strange_patience_does_not_wait(seconds: float) -> None:
    events = event_log()
    assert events.after(events.after(None, 0, 0)["instance"], 0, seconds)["events"] == []


def test_events_are_logged_with_their_fields_unless_only_kept(caplog: pytest.LogCaptureFixture) -> None:
    events = event_log()
    events.keep(Event(EventKind.CAP_BEGAN, "kept"))
    event = Event(EventKind.PAUSED, "said", rule="by hand")
    with caplog.at_level(logging.INFO):
        events.say(event)
    (record,) = caplog.records
    assert (record.levelname, record.message) == ("WARNING", "said")
    assert record.__dict__["fields"] == event.fields


# What a step says


def test_window_has_its_event_although_a_rate_by_hand_hides_it(tmp_path: Path) -> None:
    scheduled = replace(ETHERNET, schedule=(NIGHT, MORNING))
    world = World(tmp_path, (WIFI, scheduled))
    world.running.config = replace(world.running.config, time_zone=BERLIN)
    world.clock.epoch = datetime(2026, 11, 27, 21, 30, tzinfo=BERLIN).timestamp() - world.clock.now
    world.operator.set(cap("ethernet", FAST))
    world.step()
    reader = Reader(world)
    assert world.loop.next_deadline <= world.clock.now + 1800
    world.step(after=1800)
    (began,) = reader.new()
    assert began["text"] == "ethernet: window 22:00-06:00 began, until 06:00: cap 3mbit, limit unlimited"
    assert (began["kind"], began["network"], began["rule"]) == ("window-began", "ethernet", "schedule")
    assert began["reason"] == "schedule 22:00-06:00"
    assert began["until"] == pytest.approx(datetime(2026, 11, 28, 6, 0, tzinfo=BERLIN).timestamp())
    world.step(after=4 * 3600)
    assert reader.texts() == []
    world.step(after=4 * 3600)
    assert reader.texts() == [
        "ethernet: window 22:00-06:00 ended",
        "ethernet: window 06:00-09:00 began, until 09:00: cap unlimited",
    ]


def test_window_that_holds_at_the_start_has_no_event(tmp_path: Path) -> None:
    always = replace(ETHERNET, schedule=(Window(When.parse("00:00-24:00"), {RateKind.CAP: FAST}),))
    world = World(tmp_path, (WIFI, always))
    reader = Reader(world)
    world.step()
    assert reader.texts() == []
    world.running.config = replace(world.running.config, networks=(WIFI, ETHERNET))
    world.step()
    assert reader.texts() == ["ethernet: window 00:00-24:00 ended"]


def test_event_of_a_rate_by_hand_has_its_end_or_why_it_has_ended(world: World) -> None:
    reader = Reader(world)
    world.operator.set(
        replace(cap("ethernet", FAST, world.clock.now + 60), client=subflow("10.1.0.9").ends.client.address)
    )
    world.operator.set(cap("ethernet", None))
    world.step()
    of_client, of_network = reader.new()
    assert of_client["text"].startswith("ethernet 10.1.0.9: cap 3mbit by hand, until ")
    assert (of_client["kind"], of_client["client"], of_client["rule"]) == ("rate-set-by-hand", "10.1.0.9", "by hand")
    assert of_client["until"] == pytest.approx(world.clock.time() + 60)
    assert (of_network["text"], of_network["until"]) == ("ethernet: cap unlimited by hand, until reset", None)
    world.operator.reset("ethernet")
    world.step(after=60)
    assert reader.texts() == ["override of ethernet cap removed", "override of ethernet 10.1.0.9 cap expired"]


def test_rate_by_hand_in_place_of_another_is_not_the_end_of_that(world: World) -> None:
    world.operator.set(cap("ethernet", FAST))
    world.step()
    reader = Reader(world)
    world.operator.set(cap("ethernet", None))
    world.step()
    assert reader.texts() == ["ethernet: cap unlimited by hand, until reset"]


def test_pause_has_an_event_when_it_begins_and_when_it_ends(world: World) -> None:
    reader = Reader(world)
    world.operator.pause(Pause(world.clock.now + 10))
    world.step()
    world.step(after=10)
    world.operator.pause(Pause(None))
    world.step()
    world.operator.resume()
    world.step()
    texts = reader.texts()
    assert texts[0].startswith("paused by the operator, until ")
    assert texts[1:] == [
        "pause expired: caps and limits apply again",
        "paused by the operator, until resumed: nothing is throttled; `mptcp-throttle resume` ends it",
        "resumed: caps and limits apply again",
    ]


def test_pause_that_goes_on_at_a_start_has_an_end() -> None:
    event = paused(Pause(1060.0), Snapshot(), 1000.0)
    assert (event.kind, event.until) == (EventKind.PAUSED, 1060.0)


def test_event_of_a_reload_has_its_changes_or_why_it_was_refused(world: World) -> None:
    reader = Reader(world)
    faster = replace(world.running.config, networks=(WIFI, ETHERNET.with_rates({RateKind.CAP: FAST})))
    for loaded in (faster, faster, ConfigError([f"problem {number}" for number in range(7)])):
        world.loop.step([Message(Reload(loaded))])
    assert [(event["kind"], event["text"]) for event in reader.new()] == [
        ("configuration-reloaded", "reloaded: network ethernet: cap 1mbit -> 3mbit"),
        ("configuration-reloaded", "reloaded: nothing changed"),
        ("configuration-refused", f"reload refused: {', '.join(f'problem {n}' for n in range(5))} and 2 more"),
    ]


def test_override_that_a_reload_drops_has_ended(world: World) -> None:
    world.operator.set(cap("ethernet", FAST))
    world.step()
    reader = Reader(world)
    world.loop.step([Message(Reload(replace(world.running.config, networks=(WIFI,))))])
    assert reader.texts()[1:] == ["override of ethernet cap dropped"]


def test_cap_events_are_of_the_first_and_the_last_cap_of_a_client(world: World) -> None:
    reader = Reader(world)
    two = connection(1, subflow("10.1.0.1"), subflow("10.1.0.1", 2), subflow("10.2.0.1"))
    world.step(two)
    (began,) = reader.new()
    assert began["text"] == "ethernet: cap 1mbit for 10.1.0.1: wifi is live"
    assert (began["kind"], began["network"], began["client"]) == ("cap-began", "ethernet", "10.1.0.1")
    assert (began["rule"], began["reason"], began["more_events"]) == ("configured", "wifi is live", 0)
    world.step(replace(two, subflows=two.subflows[1:]), after=PAUSE_SECONDS)
    assert reader.texts() == []
    world.step(ended=1)
    (ended,) = reader.new()
    assert (ended["kind"], ended["text"]) == ("cap-ended", "ethernet: no cap for 10.1.0.1 any more")


def test_other_rate_of_a_cap_is_no_other_cap_and_wakes_nobody(world: World) -> None:
    world.step(client(1))
    reader = Reader(world)
    world.operator.set(cap("ethernet", FAST))
    world.step()
    assert [event["kind"] for event in reader.new()] == ["rate-set-by-hand"]
    assert world.loop._step_events.next_deadline == math.inf


def test_caps_that_come_and_go_are_compared_with_the_last_report(world: World) -> None:
    reader = Reader(world)
    world.step(client(1))
    assert len(reader.new()) == 1
    for _ in range(100):
        world.step(client(2), ended=1, after=0.01)
        world.step(client(1), ended=2, after=0.01)
    world.step(client(2))
    assert reader.texts() == []
    assert world.loop.next_deadline <= world.clock.now + PAUSE_SECONDS
    world.step(after=PAUSE_SECONDS)
    assert reader.texts() == ["ethernet: cap 1mbit for 10.1.0.2: wifi is live"]


def test_caps_of_thousands_of_clients_are_few_events(world: World) -> None:
    reader = Reader(world)
    for turn in range(20):
        world.step(*(client(100 * turn + number) for number in range(1, 101)), after=0.1)
    world.step(after=PAUSE_SECONDS)
    first, rest = reader.new()
    assert (first["more_events"], rest["more_events"]) == (99, 1899)
    assert re.fullmatch(r"ethernet: cap 1mbit for 10\.1\.0\.\d+: wifi is live; and 99 more", first["text"])


def test_adopted_cap_does_not_begin_but_ends(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.step(client(1))
    (minor,) = (throttled.minor for throttled in world.loop.snapshot.throttled.values())
    ends: FourTuple = next(iter(world.loop.snapshot.throttled))
    (tmp_path / "next").mkdir()
    successor = World(tmp_path / "next", kernel=world.kernel)
    successor.loop.adopt({ends: minor})
    successor.step(client(1))
    assert [throttled.adopted for throttled in successor.loop.snapshot.throttled.values()] == [True]
    successor.step(ended=1)
    assert [event["kind"] for event in successor.loop.events.after(None, 0, 0)["events"]] == ["cap-ended"]


def test_client_of_another_prefix_after_a_reload_is_another_client(world: World) -> None:
    both = connection(1, subflow("fd00:1::1"), subflow("fd00:2::1"))
    world.step(both)
    reader = Reader(world)
    wider = replace(ETHERNET, client_prefix=replace(ETHERNET.client_prefix, ipv6=32))
    world.running.config = replace(world.running.config, networks=(WIFI, wider))
    world.step(after=PAUSE_SECONDS)
    world.step(ended=1, after=PAUSE_SECONDS)
    assert [(event["kind"], event["client"]) for event in reader.new()] == [("cap-ended", "fd00:1::")]


def test_sniffer_that_does_not_answer_is_an_error_until_it_does(world: World) -> None:
    reader = Reader(world)
    world.lose_sniffer()
    world.step(after=PAUSE_SECONDS)
    assert [(event["kind"], event["text"]) for event in reader.new()] == [
        ("error-began", "the sniffer does not answer; all subflows are free: no answer"),
        ("error-ended", "resolved: the sniffer answers"),
    ]


def test_error_that_comes_and_goes_is_reported_every_few_seconds(world: World) -> None:
    reader = Reader(world)
    for _ in range(100):
        world.lose_sniffer()
        world.step()
    assert len(reader.new()) == 1
    world.step(after=PAUSE_SECONDS)
    assert reader.texts() == ["resolved: the sniffer answers"]


def test_errors_of_the_kernel_have_events(world: World) -> None:
    reader = Reader(world)
    world.kernel.refuse = (AddClass,)
    world.step(client(1))
    (began,) = reader.texts()
    assert world.loop.snapshot.errors == (began,)


def test_not_enforced_rates_have_one_event_until_all_are_enforced() -> None:
    why = {capped(1): "its socket is not paced", capped(2): "its socket is not paced"}
    began = enforcement_event({}, why, Snapshot())
    assert began is not None
    assert (began.kind, began.client, began.reason) == (EventKind.ERROR_BEGAN, "10.1.0.1", "its socket is not paced")
    assert began.text == "2 subflows: rate not enforced; client=10.1.0.1:40000: its socket is not paced"
    assert enforcement_event(why, {capped(3): ""}, Snapshot()) is None
    assert enforcement_event({}, {}, Snapshot()) is None
    ended = enforcement_event(why, {}, Snapshot())
    assert ended is not None
    assert ended.kind is EventKind.ERROR_ENDED


def test_lines_of_the_log_about_caps_have_the_fields(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        world.step(client(1))
        world.step(ended=1)
    fields = [record.__dict__["fields"] for record in caplog.records if record.__dict__.get("fields")]
    assert fields == [
        {
            "MESSAGE_ID": EventKind.CAP_BEGAN.message_id,
            "MPTCP_EVENT": "cap-began",
            "MPTCP_NETWORK": "ethernet",
            "MPTCP_CLIENT": "10.1.0.1",
            "MPTCP_RULE": "configured",
            "MPTCP_REASON": "wifi is live",
        },
        {
            "MESSAGE_ID": EventKind.CAP_ENDED.message_id,
            "MPTCP_EVENT": "cap-ended",
            "MPTCP_NETWORK": "ethernet",
            "MPTCP_CLIENT": "10.1.0.1",
            "MPTCP_REASON": "subflow ended",
        },
    ]


def test_changes_forget_what_was_never_reported() -> None:
    changes: Changes[int, str] = Changes()
    changes.note(1, "first")
    assert changes.take(0.0) == ({1: "first"}, {})
    for key in range(2, 5000):
        changes.note(key, "there")
        changes.note(key, None)
    assert changes.next_deadline == math.inf
    changes.note(1, None)
    assert changes.next_deadline == PAUSE_SECONDS
    assert changes.take(PAUSE_SECONDS - 1) == ({}, {})
    assert changes.take(PAUSE_SECONDS) == ({}, {1: "first"})
