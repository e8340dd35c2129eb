import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mptcp_throttle.errors import NotYetAppliedError, UserError
from mptcp_throttled.control import inbox
from mptcp_throttled.control.inbox import Inbox
from mptcp_throttled.control.requests import Request, Resume


@pytest.fixture
def askers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def refuse(_: Request[Any]) -> None:
    raise UserError("no")


def test_request_is_answered_only_after_its_step(askers: ThreadPoolExecutor) -> None:
    box, done = Inbox(), []
    asked = askers.submit(box.ask, Resume())
    (message,) = box.wait(5)
    message.carry_out(lambda request: done.append(request) or True)  # type: ignore[func-returns-value]
    assert (done, asked.done()) == ([Resume()], False)
    message.answer()
    assert asked.result(5) is True


def test_request_refusal_goes_to_the_caller(askers: ThreadPoolExecutor) -> None:
    box = Inbox()
    asked = askers.submit(box.ask, Resume())
    (message,) = box.wait(5)
    message.carry_out(refuse)
    message.answer()
    with pytest.raises(UserError, match="no"):
        asked.result(5)


def test_request_given_up_by_its_caller_is_not_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "_ANSWER_SECONDS", 0.01)
    box, done = Inbox(), threading.Event()
    with pytest.raises(UserError, match=r"not accepted in 0\.01 s: busy; see status"):
        box.ask(Resume())
    (message,) = box.wait(5)
    message.carry_out(lambda _: done.set())
    message.answer()
    assert not done.is_set()


def test_request_accepted_but_not_applied_has_its_own_error(
    askers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "_ANSWER_SECONDS", 0.2)
    box, done = Inbox(), threading.Event()
    asked = askers.submit(box.ask, Resume())
    (message,) = box.wait(5)
    message.carry_out(lambda _: done.set())
    with pytest.raises(NotYetAppliedError, match=r"saved, but not applied after 0\.2 s; see status"):
        asked.result(5)
    message.answer()
    assert done.is_set()


def test_wake_ends_the_wait_without_a_request() -> None:
    box = Inbox()
    box.wake()
    assert box.wait(60) == []
    assert box.wait(-1) == []
