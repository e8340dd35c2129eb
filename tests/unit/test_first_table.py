"""A daemon that starts waits for the sniffer's table, whatever else happens meanwhile."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mptcp_throttled.control.inbox import Inbox
from mptcp_throttled.control.source import Follower, TableUpdate
from mptcp_throttled.lifecycle import first_table
from mptcp_throttled.lifecycle.first_table import wait_for_table
from mptcp_throttled.vocabulary.clock import Clock


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def follower(inbox: Inbox) -> Follower:
    return Follower(inbox.wake, Clock())


@contextmanager
def waking(inbox: Inbox) -> Iterator[None]:
    """Another thread wakes the daemon up all the time, as changes of the kernel do."""
    ended = threading.Event()

    def wake() -> None:
        while not ended.wait(0.01):
            inbox.wake()

    thread = threading.Thread(target=wake)
    thread.start()
    yield
    ended.set()
    thread.join()


def test_other_messages_do_not_end_the_wait_for_the_table(inbox: Inbox, follower: Follower) -> None:
    later = threading.Timer(0.3, lambda: follower._deliver(TableUpdate(problem=None)))
    with waking(inbox):
        later.start()
        assert wait_for_table(follower, inbox, lambda: False) == []
    assert not follower.empty


def test_wait_ends_without_a_part_of_the_table(
    inbox: Inbox, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_table, "_PART_SECONDS", 0.2)
    began = time.monotonic()
    with waking(inbox):
        wait_for_table(follower, inbox, lambda: False)
    assert time.monotonic() - began >= 0.2
    assert follower.empty


def test_wait_goes_on_while_parts_of_the_table_come(
    inbox: Inbox, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_table, "_PART_SECONDS", 0.5)

    def receive() -> None:
        for _ in range(8):
            time.sleep(0.1)
            follower.parts += 1
        follower._deliver(TableUpdate(problem=None))

    thread = threading.Thread(target=receive)
    with waking(inbox):
        thread.start()
        wait_for_table(follower, inbox, lambda: False)
    thread.join()
    assert not follower.empty


def test_wait_ends_when_the_daemon_is_to_stop(inbox: Inbox, follower: Follower) -> None:
    stopping = threading.Event()

    def stop() -> None:
        stopping.set()
        inbox.wake()

    threading.Timer(0.1, stop).start()
    wait_for_table(follower, inbox, stopping.is_set)
    assert follower.empty
