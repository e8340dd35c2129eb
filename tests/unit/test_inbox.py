import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mptcp_throttle.errors import UserError
from mptcp_throttled import inbox
from mptcp_throttled.inbox import Inbox


@pytest.fixture
def askers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def refuse() -> None:
    raise UserError("no")


def test_a_request_is_answered_only_after_the_round_it_is_part_of(askers: ThreadPoolExecutor) -> None:
    box, done = Inbox(), []
    asked = askers.submit(box.ask, lambda: done.append("change") or "result")  # type: ignore[func-returns-value]
    (request,) = box.wait(5)
    request.carry_out()
    assert (done, asked.done()) == (["change"], False)
    request.answer()
    assert asked.result(5) == "result"


def test_a_refusal_goes_to_who_asked(askers: ThreadPoolExecutor) -> None:
    box = Inbox()
    asked = askers.submit(box.ask, refuse)
    (request,) = box.wait(5)
    request.carry_out()
    request.answer()
    with pytest.raises(UserError, match="no"):
        asked.result(5)


def test_what_nobody_waits_for_any_more_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "_ANSWER_SECONDS", 0.01)
    box, done = Inbox(), threading.Event()
    with pytest.raises(UserError, match=r"not accepted in 0\.01 s: busy; see status"):
        box.ask(done.set)
    (request,) = box.wait(5)
    request.carry_out()
    request.answer()
    assert not done.is_set()


def test_what_has_begun_but_does_not_end_is_told_apart(
    askers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "_ANSWER_SECONDS", 0.2)
    box, done = Inbox(), threading.Event()
    asked = askers.submit(box.ask, done.set)
    (request,) = box.wait(5)
    request.carry_out()
    with pytest.raises(UserError, match=r"accepted, but not in force after 0\.2 s; see status"):
        asked.result(5)
    request.answer()
    assert done.is_set()


def test_a_nudge_ends_the_wait_and_asks_nothing() -> None:
    box = Inbox()
    box.wake()
    assert box.wait(60) == []
    assert box.wait(-1) == []
