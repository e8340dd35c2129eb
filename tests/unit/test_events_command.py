"""`mptcp-throttle events`: what it prints of the daemon's answers, through gaps, restarts and a reader that leaves."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from mptcp_throttle.cli.events import Position, as_json, as_text, follow, latest, show, unseen
from mptcp_throttle.rpc import Json, RpcError


def answer(instance: str, *numbers: int, to: int | None = None) -> Json:
    made = [{"number": number, "at": 1.7e9, "kind": "paused", "text": f"event {number}"} for number in numbers]
    return {"instance": instance, "latest": to if to is not None else max(numbers, default=0), "events": made}


def missed(found: list[Json]) -> dict[int, int]:
    return {event["number"]: event["missed"] for event in found}


def test_reader_that_lags_is_told_how_many_it_missed_and_where() -> None:
    position, seen = unseen(Position("a", 3), answer("a", 7, 8, 20))
    assert (position, missed(seen)) == (Position("a", 20), {7: 3, 8: 0, 20: 11})


def test_first_event_after_a_restart_follows_none() -> None:
    position, seen = unseen(Position("a", 300), answer("b", 1, 2))
    assert (position, missed(seen)) == (Position("b", 2), {1: 0, 2: 0})
    assert [event["instance"] for event in seen] == ["b", "b"]


@pytest.mark.parametrize(("number", "expected"), [(0, []), (2, [8, 9]), (100, [3, 8, 9])])
def test_latest_events_begin_without_a_gap(number: int, expected: list[int]) -> None:
    position, seen = latest(answer("a", 3, 8, 9), number)
    assert position == Position("a", 9)
    assert [event["number"] for event in seen] == expected
    assert not any(event["missed"] for event in seen[:1])


def test_lines_are_one_event_each(capfd: pytest.CaptureFixture[str]) -> None:
    show(lambda *_: answer("a", 1, 2), 20, lambda event: as_json(1, event))
    printed = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(line["format"], line["instance"], line["number"], line["missed"]) for line in printed] == [
        (1, "a", 1, 0),
        (1, "a", 2, 0),
    ]


def test_text_says_when_and_what_and_that_others_were_missed() -> None:
    (event,) = unseen(Position("a", 1), answer("a", 5))[1]
    first, second = as_text(event).splitlines()
    assert first == "(3 events missed)"
    assert second.endswith("  paused                  event 5")


class Daemon:
    """Answers one call after another with these answers, and ends the reader as Ctrl-C does."""

    def __init__(self, *answers: Json | RpcError) -> None:
        self._answers = list(answers)
        self.asked: list[Position] = []

    def __call__(self, position: Position, seconds: float) -> Any:  # noqa: ANN401, ARG002
        self.asked.append(position)
        if not self._answers:
            raise KeyboardInterrupt
        next_answer = self._answers.pop(0)
        if isinstance(next_answer, RpcError):
            raise next_answer
        return next_answer


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr("time.sleep", made.append)
    return made


def followed(daemon: Callable[[Position, float], Json]) -> None:
    with pytest.raises(KeyboardInterrupt):
        follow(daemon, 20, lambda event: f"{event['instance']}{event['number']}\n")


def test_follower_goes_on_when_the_daemon_comes_back(capfd: pytest.CaptureFixture[str], waits: list[float]) -> None:
    gone = RpcError("daemon.sock: no service answers", os.EX_UNAVAILABLE)
    not_yet = RpcError("daemon.sock: permission denied", os.EX_NOPERM)
    daemon = Daemon(answer("a", 1), answer("a", 2), gone, gone, not_yet, answer("b", 1), answer("b", to=1))
    followed(daemon)
    out, err = capfd.readouterr()
    assert out == "a1\na2\nb1\n"
    assert err == "waiting for the daemon: daemon.sock: no service answers\n"
    assert daemon.asked[:3] == [Position(), Position("a", 1), Position("a", 2)]
    assert daemon.asked[-2:] == [Position("b", 1), Position("b", 1)]
    assert len(waits) == 4  # no service three times, and nothing new


def test_daemon_that_does_not_answer_at_the_beginning_is_an_error() -> None:
    with pytest.raises(RpcError, match="no service answers"):
        follow(Daemon(RpcError("no service answers", os.EX_UNAVAILABLE)), 20, as_text)


def test_daemon_that_refuses_is_an_error(waits: list[float]) -> None:
    with pytest.raises(RpcError, match="no such method"):
        follow(Daemon(answer("a", 1), RpcError("no such method")), 20, as_text)
    assert waits == []


def test_follower_ends_when_its_reader_has_gone_although_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="utf-8") as output:
        monkeypatch.setattr("sys.stdout", output)
        with pytest.raises(BrokenPipeError):
            follow(Daemon(*[answer("a", to=0)] * 3), 20, as_text)
