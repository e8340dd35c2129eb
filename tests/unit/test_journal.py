"""Lines of the journal: their fields, over a real socket, and which of them go where."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mptcp_throttle import journal

PROGRAM = """\
import functools, logging, pathlib, sys
from mptcp_throttle import journal, logs
journal.send = functools.partial(journal.send, path=pathlib.Path(sys.argv[1]))
sys.argv[0] = "/usr/lib/mptcp-throttle/bin/mptcp-throttled"
logs.configure()
log = logging.getLogger("any")
log.info("without fields")
for _ in range(int(sys.argv[2])):
    log.warning("with fields", extra=logs.with_fields({"MESSAGE_ID": "abc", "MPTCP_NETWORK": "lte"}))
log.error("also without")
"""


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket as journald has."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "socket"))
        sock.setblocking(False)
        yield sock


def path_of(sock: socket.socket) -> Path:
    return Path(sock.getsockname())


def decoded(data: bytes) -> dict[str, str]:
    """The fields of a datagram, as systemd's JOURNAL_NATIVE_PROTOCOL.md says how to read them."""
    fields = {}
    while data:
        line, _, data = data.partition(b"\n")
        name, has_value, value = line.partition(b"=")
        if not has_value:
            (length,) = struct.unpack("<Q", data[:8])
            value, end, data = data[8 : 8 + length], data[8 + length : 9 + length], data[9 + length :]
            assert end == b"\n"
        fields[name.decode()] = value.decode()
    return fields


def received(sock: socket.socket) -> list[dict[str, str]]:
    lines = []
    try:
        while True:
            lines.append(decoded(sock.recv(1 << 20)))
    except BlockingIOError:
        return lines


@pytest.mark.parametrize("text", ["plain", "", "a=b", "two\nlines", "ends with one\n", "ünïcode", "\n=\n"])
def test_fields_arrive_as_they_were_sent(journald: socket.socket, text: str) -> None:
    fields = {"MESSAGE": text, "PRIORITY": "6", "MPTCP_REASON": text * 2}
    assert journal.send(fields, path_of(journald))
    assert received(journald) == [fields]


def test_long_values_are_cut_so_that_the_datagram_fits(journald: socket.socket) -> None:
    assert journal.send({"MESSAGE": "\N{FIRE}" * 1_000_000, "MPTCP_REASON": "x" * 1_000_000}, path_of(journald))
    assert received(journald) == [{"MESSAGE": "\N{FIRE}" * 8192, "MPTCP_REASON": "x" * 8192}]


def test_text_that_is_not_unicode_is_sent_nevertheless(journald: socket.socket) -> None:
    assert journal.send({"MESSAGE": "before \udcff after"}, path_of(journald))
    assert received(journald) == [{"MESSAGE": "before ? after"}]


def test_journal_that_is_not_there_takes_nothing(tmp_path: Path) -> None:
    assert not journal.send({"MESSAGE": "text"}, tmp_path / "gone")


def test_journal_that_does_not_read_is_not_waited_for(journald: socket.socket) -> None:
    taken = 0
    while journal.send({"MESSAGE": "text"}, path_of(journald)):
        taken += 1
    assert 0 < taken == len(received(journald))


def lines_of_a_service(arguments: list[str], *, is_journal: bool = True) -> list[str]:
    """What a program prints to a stderr that is the journal, or that is something else than stdout, which is."""
    reading, writing = os.pipe()
    status = os.fstat(writing if is_journal else 0)
    environment = {**os.environ, "JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
    subprocess.run([sys.executable, "-c", PROGRAM, *arguments], stderr=writing, env=environment, check=True)
    os.close(writing)
    with open(reading, encoding="utf-8") as printed:
        return printed.read().splitlines()


def test_each_line_goes_to_the_journal_once(journald: socket.socket) -> None:
    printed = lines_of_a_service([str(path_of(journald)), "1"])
    assert printed == ["<6>without fields", "<3>also without"]
    assert received(journald) == [
        {
            "MESSAGE": "with fields",
            "PRIORITY": "4",
            "SYSLOG_IDENTIFIER": "mptcp-throttled",
            "MESSAGE_ID": "abc",
            "MPTCP_NETWORK": "lte",
        }
    ]


def test_line_that_the_journal_does_not_take_goes_to_stderr(tmp_path: Path) -> None:
    printed = lines_of_a_service([str(tmp_path / "gone"), "1"])
    assert printed == ["<6>without fields", "<4>with fields", "<3>also without"]


def test_lines_do_not_each_wait_for_a_journal_that_does_not_read(journald: socket.socket) -> None:
    while journal.send({"MESSAGE": "fills the queue"}, path_of(journald)):
        pass
    began = time.monotonic()
    printed = lines_of_a_service([str(path_of(journald)), "100"])
    assert printed.count("<4>with fields") == 100
    assert time.monotonic() - began < 5  # 100 waits would take 10 s


def test_stderr_that_is_not_the_journal_has_times_and_levels(journald: socket.socket) -> None:
    printed = lines_of_a_service([str(path_of(journald)), "1"], is_journal=False)
    assert [re.sub(r"^\d\d:\d\d:\d\d\.\d{3} ", "", line) for line in printed] == [
        "INFO without fields",
        "WARNING with fields",
        "ERROR also without",
    ]
    assert received(journald) == []
