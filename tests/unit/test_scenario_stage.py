"""The order of what happens in a run, and what is seen of the caps in it: without hosts, flows and services."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mptcp_lab.lab_errors import LabError
from mptcp_lab.port import Port
from mptcp_lab.sampler import InterfaceSample
from mptcp_lab.scenario import stage
from mptcp_lab.scenario.figures import measure
from mptcp_lab.scenario.files import load
from mptcp_lab.scenario.flows import compare
from mptcp_lab.scenario.recording import CapChange, Event, Recording

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mptcp_lab.scenario.scenario_schema import Scenario

HEAD = """\
title: a client and a proxy
hosts: {ue: {}, proxy: {server: squid, run: [throttle]}, origin: {run: [origin]}}
links:
  lte: {ends: [ue.eth0, proxy.eth0], rate: 8mbit}
  origin: {ends: [ue.eth1, origin.eth0], rate: 8mbit}
throttle: {networks: {lte: {link: lte, preference: 1, cap: 1mbit}}}
flows: {x: {from: origin, to: ue, via: proxy}}
"""
LOG = """\
23:59:59.500 INFO following the sniffer: 0 connections
23:59:59.900 INFO cap token=7 client=10.1.0.1:4000 network=lte direction=downlink rate=1mbit \
class=1:2 reason='x is live' after_ms=23.5
00:00:02.400 INFO cap token=7 client=10.1.0.1:4000 network=lte direction=downlink rate=5mbit reason='x' after_ms=-
00:00:03.400 INFO limit token=7 client=10.1.0.1:4000 network=lte direction=downlink rate=9mbit reason='no' after_ms=23.5
00:00:04.400 INFO cap token=7 client=10.1.0.1:4001 device=phone network=lte direction=downlink rate=800kbit \
reason='x' after_ms=1.0
00:00:05.400 INFO free token=7 client=10.1.0.1:4001 network=lte direction=downlink reason='subflow ended'
"""
CHANGES = [
    CapChange(0.5, "10.1.0.1:4000", "lte", 1.0, 0.0235),
    CapChange(3.0, "10.1.0.1:4000", "lte", 5.0, None),
    CapChange(4.0, "10.1.0.1:4000", "lte", None, None),
    CapChange(5.0, "10.1.0.1:4001", "lte", 0.8, 0.001),
    CapChange(6.0, "10.1.0.1:4001", "lte", None, None),
]


def scenario_of(directory: Path, text: str) -> Scenario:
    path = directory / "x.yaml"
    path.write_text(HEAD + text)
    return load("s/x", path)[0].scenario


def play(
    scenario: Scenario,
    monkeypatch: pytest.MonkeyPatch,
    caps: list[CapChange] | None = None,
    set_clock: Callable[[datetime], None] | None = None,
) -> stage.Stage:
    """Let the scenario happen in a world that does nothing; the caps come when their time has come."""
    pending = list(caps or [])
    played: list[stage.Stage] = []

    def new_cap_changes(_began: float) -> list[CapChange]:
        now = played[0].now
        new = [change for change in pending if change.at <= now]
        pending[:] = [change for change in pending if change.at > now]
        return new

    services = SimpleNamespace(cli=lambda *_words: None, subflows=lambda: (), set_daemon_clock=set_clock)
    running: Any = SimpleNamespace(services=services, new_cap_changes=new_cap_changes)
    flow: Any = SimpleNamespace(name="x", limited=False, ended=False, start=lambda: None)
    display: Any = SimpleNamespace(is_live=False, event=lambda _event: None)
    world: Any = SimpleNamespace(hosts={})
    monkeypatch.setattr(stage, "execute", lambda _hosts, _commands: None)
    played.append(stage.Stage(scenario, world, [flow], running, None, display))
    played[0].play({"x": 0.0}, sampler=SimpleNamespace(interfaces=[]))  # type: ignore[arg-type]
    return played[0]


def test_stage_does_events_at_moments_after_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """\
duration: 30s
until: last + 100ms
events:
  - {at: cap + 100ms, link: lte, rate: 2mbit, name: first}
  - {at: first + 200ms, throttle: pause, name: last}
  - {at: 1ms, link: lte, rate: 9mbit}
report: {}
"""
    cap = CapChange(0.2, "10.1.0.1:4000", "lte", 1.0, 0.01)
    done = play(scenario_of(tmp_path, text), monkeypatch, [cap])
    assert [event.text for event in done.events] == ["lte rate 9mbit", "cap on lte", "lte rate 2mbit", "pause"]
    times = [event.at for event in done.events[1:]]
    assert times[0] == 0.2
    assert times[1] >= 0.3
    assert times[2] >= times[1] + 0.2
    assert times[2] + 0.1 <= done.now < 5


def test_stage_sets_the_daemons_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clocked = HEAD.replace("throttle: {", "throttle: {clock: 2027-01-10 12:00:00, ")
    events = "events:\n  - {at: 10ms, clock: 2027-02-14 23:59:58}\n"
    path = tmp_path / "x.yaml"
    path.write_text(f"{clocked}duration: 100ms\n{events}report: {{}}\n")
    times: list[datetime] = []
    done = play(load("s/x", path)[0].scenario, monkeypatch, set_clock=times.append)
    assert times == [datetime(2027, 2, 14, 23, 59, 58, tzinfo=UTC)]
    assert [event.text for event in done.events] == ["the clock shows 2027-02-14 23:59:58"]


def test_stage_fails_if_the_end_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = scenario_of(tmp_path, "duration: 100ms\nuntil: cap + 1s\nreport: {}\n")
    with pytest.raises(LabError, match=r"cap \+ 1 s: did not come in 0.1 s"):
        play(scenario, monkeypatch)


def test_stage_ends_with_the_duration_without_flows_that_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert play(scenario_of(tmp_path, "duration: 100ms\nreport: {}\n"), monkeypatch).now >= 0.1


def test_cap_changes_are_read_from_the_log_over_midnight() -> None:
    changes = stage.cap_changes(LOG, 86_399.4)
    assert [change._replace(at=round(change.at, 6)) for change in changes] == CHANGES


@pytest.mark.parametrize(
    ("arrived", "limited", "problem"),
    [
        (b"0123456789", True, None),
        (b"01234", False, None),
        (b"01234", True, "only 5 bytes arrived"),
        (b"01239", False, "is not what was sent"),
        (b"0123456789a", True, "is not what was sent"),
    ],
)
def test_flow_compares_what_arrived_with_what_was_sent(
    tmp_path: Path, arrived: bytes, limited: bool, problem: str | None
) -> None:
    received, sent = tmp_path / "received", tmp_path / "sent"
    received.write_bytes(arrived)
    sent.write_bytes(b"0123456789")
    if problem is None:
        assert compare(received, sent, whole=limited) == len(arrived)
    else:
        with pytest.raises(LabError, match=problem):
            compare(received, sent, whole=limited)


def test_flow_of_which_nothing_arrived_has_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "sent").write_bytes(b"0123456789")
    assert compare(tmp_path / "received", tmp_path / "sent", whole=False) == 0


def recording(**changes: Any) -> Recording:  # noqa: ANN401
    samples = [InterfaceSample(float(at), Port("ue", "eth0"), at * at * 125_000, 0) for at in range(11)]
    given: dict[str, Any] = {"interfaces": samples, "subflows": [], "counters": {}, "flows": {}, "events": []}
    return Recording(duration=10.0, idle=0.5, **(given | changes))


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("{rate: [lte], from: change, to: lost}", 12.0),  # 5 s, when the command was done, to 7 s, when one began
        ("{rate: [lte], to: change}", 4.0),
        ("{rate: [lte], from: change + 1s}", 16.0),
        ("{rate: [lte], window: the end}", 18.0),
        ("{rate: [lte], from: lost + 4s}", None),
        ("{capped: lte}", 2.0),
        ("{join_to_cap: lte}", 23.5),
        ("{lift: lte, from: 3500ms}", 0.5),
        ("{lift: lte, from: change}", 1.0),
        ("{lift: lte, from: lost}", None),
        ("{backups: lte}", 1.0),
        ("{used: lte}", 1.5),
        ("{restored: proxy}", 0.0),
    ],
)
def test_measure_reads_figures_of_caps_and_of_parts(tmp_path: Path, figure: str, value: float | None) -> None:
    text = f"""\
duration: 10s
events:
  - {{at: 4s, throttle: pause, name: change}}
  - {{at: 7s, leave: ue.eth0, name: lost}}
windows: {{the end: {{from: 8s}}}}
report: {{f: {figure}}}
"""
    events = [Event(4.0, "pause", "change", 5.0), Event(7.0, "leave ue.eth0", "lost")]
    seen = recording(events=events, caps=CHANGES, backups=frozenset({"lte"}), restored=False, used={"lte": 1_500_000})
    assert measure(scenario_of(tmp_path, text), seen)["f"] == pytest.approx(value)


def test_measure_has_no_figure_after_an_event_that_did_not_happen(tmp_path: Path) -> None:
    scenario = scenario_of(tmp_path, "duration: 10s\nreport: {f: {rate: [lte], from: cap}, g: {join_to_cap: lte}}\n")
    assert measure(scenario, recording()) == {"f": None, "g": None}
