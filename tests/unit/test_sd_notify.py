import math
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mptcp_throttle import systemd
from mptcp_throttle.systemd import Watchdog, watchdog_interval


@pytest.fixture(params=[False, True], ids=["path", "abstract"])
def notified(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    name = f"@mptcp-throttle-test-{os.getpid()}" if request.param else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + name[1:] if request.param else name)
        sock.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield sock


def messages(sock: socket.socket) -> list[bytes]:
    received = []
    try:
        while True:
            received.append(sock.recv(100))
    except BlockingIOError:
        return received


def test_notify_writes_to_the_notify_socket(notified: socket.socket) -> None:
    systemd.notify("READY=1")
    assert messages(notified) == [b"READY=1"]


def test_notify_does_nothing_without_the_socket_or_systemd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    systemd.notify("STOPPING=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    systemd.notify("READY=1")


def test_descriptor_replaces_the_one_that_was_kept_before(notified: socket.socket) -> None:
    with open(os.devnull, encoding="ascii") as file:
        systemd.keep("link", file.fileno())
        received = [socket.recv_fds(notified, 100, 2)[:2] for _ in range(2)]
        assert [message for message, _ in received] == [b"FDSTOREREMOVE=1\nFDNAME=link", b"FDSTORE=1\nFDNAME=link"]
        (copy,) = (descriptor for _, descriptors in received for descriptor in descriptors)
        assert os.path.sameopenfile(copy, file.fileno())
        os.close(copy)
    systemd.keep("link", None)
    assert messages(notified) == [b"FDSTOREREMOVE=1\nFDNAME=link"]


def test_descriptors_of_that_name_are_taken_once_and_by_this_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert systemd.take_kept("link") == ()
    for pid, taken in ((os.getpid(), (4, 5)), (1, ())):
        monkeypatch.setenv("LISTEN_PID", str(pid))
        monkeypatch.setenv("LISTEN_FDNAMES", "socket:link:link")
        assert systemd.take_kept("link") == taken
        assert systemd.take_kept("link") == ()


@pytest.mark.parametrize(
    ("environment", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "10000000"}, 10.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": str(os.getpid())}, 10.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_watchdog_interval_applies_to_this_process_only(environment: dict[str, str], interval: float | None) -> None:
    assert watchdog_interval(environment) == interval


def test_watchdog_is_pinged_at_once_and_then_at_half_its_interval(
    notified: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    watchdog = Watchdog()
    assert watchdog.due <= clock[0]
    pings = []
    for clock[0] in (100.0, 100.9, 101.0, 101.9, 103.5, 104.4):
        watchdog.alive()
        pings.append(len(messages(notified)))
    assert pings == [1, 0, 1, 0, 1, 0]
    assert watchdog.due == 104.5


def test_watchdog_is_never_due_without_an_interval(notified: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    watchdog = Watchdog()
    watchdog.alive()
    assert (messages(notified), watchdog.due) == ([], math.inf)
