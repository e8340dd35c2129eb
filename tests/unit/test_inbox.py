import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mptcp_throttle.errors import UserError
from mptcp_throttled.control import inbox
from mptcp_throttled.control.inbox import Inbox


@pytest.fixture
def askers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def refuse() -> None:
    raise UserError("no")


def test_request_is_answered_only_after_its_step(askers: ThreadPoolExecutor) -> None:
    box, done = Inbox(), []
    asked = askers.submit(box.ask, lambda: done.append("change") or "result")  # type: ignore[func-returns-value]
    (request,) = box.wait(5)
    request.carry_out()
    assert (done, asked.done()) == (["change"], False)
    request.answer()
    assert asked.result(5) == "result"


def test_request_refusal_goes_to_the_caller(askers: ThreadPoolExecutor) -> None:
    box = Inbox()
    asked = askers.submit(box.ask, refuse)
    (request,) = box.wait(5)
    request.carry_out()
    request.answer()
    with pytest.raises(UserError, match="no"):
        asked.result(5)


def test_request_given_up_by_its_caller_is_not_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "_ANSWER_SECONDS", 0.01)
    box, done = Inbox(), threading.Event()
    with pytest.raises(UserError, match=r"not accepted in 0\.01 s: busy; see status"):
        box.ask(done.set)
    (request,) = box.wait(5)
    request.carry_out()
    request.answer()
    assert not done.is_set()


def test_request_accepted_but_not_applied_has_its_own_error(
    askers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "_ANSWER_SECONDS", 0.2)
    box, done = Inbox(), threading.Event()
    asked = askers.submit(box.ask, done.set)
    (request,) = box.wait(5)
    request.carry_out()
    with pytest.raises(UserError, match=r"accepted, but not applied after 0\.2 s; see status"):
        asked.result(5)
    request.answer()
    assert done.is_set()


def test_wake_ends_the_wait_without_a_request() -> None:
    box = Inbox()
    box.wake()
    assert box.wait(60) == []
    assert box.wait(-1) == []
