"""How often a reminder runs its program."""

import errno
import itertools
import logging
import threading
import time

import pytest

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttled.kernel import reminder
from mptcp_throttled.kernel.reminder import Reminder


def test_idle_program_is_run_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    answers = iter([True, False, False, True])
    ended = threading.Event()

    def remind() -> bool:
        answer = next(answers, None)
        if answer is None:
            running.stop()
            return False
        return answer

    monkeypatch.setattr(time, "sleep", slept.append)
    running = Reminder(remind, ended.set, "nothing works")
    running.start()
    assert ended.wait(10)
    busy, idle = reminder.REMIND_SECONDS, reminder._IDLE_SECONDS
    assert slept == [busy, busy, idle, idle, busy, idle]


def test_refusals_are_logged_once_until_it_works_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = itertools.count()
    ended = threading.Event()

    def remind() -> bool:
        number = next(calls)
        if number == 5:
            running.stop()
        if number != 2:
            raise KernelError("run remind", errno.ENOMEM)
        return True

    monkeypatch.setattr(time, "sleep", lambda _: None)
    running = Reminder(remind, ended.set, "nothing works")
    with caplog.at_level(logging.ERROR):
        running.start()
        assert ended.wait(10)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["nothing works"] * 2
