"""What systemd is told: ready when it is true, alive as long as the thread that matters is, stopping at the end."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bench import EXECUTABLES, eventually

from mptcp_lab.services import Services
from mptcp_lab.topology import Lab, Topology, build
from mptcp_throttle.rpc import RpcClient

if TYPE_CHECKING:
    from mptcp_lab.process import Process

INTERVAL = 2.0

# As systemd does: the variable names the process that is to serve the watchdog.
START = 'export NOTIFY_SOCKET="$1" WATCHDOG_USEC="$2" WATCHDOG_PID=$$; shift 2; exec "$@"'

# Stops one thread alone; the others run on. When this program ends, so does the stop (ptrace(2)).
HOLD = """
import ctypes, os, sys
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
thread = int(sys.argv[1])
for request in (0x4206, 0x4207):  # PTRACE_SEIZE, PTRACE_INTERRUPT: include/uapi/linux/ptrace.h
    if ptrace(request, thread, None, None):
        sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(thread, 0x40000000)  # __WALL: include/uapi/linux/wait.h
print("held", flush=True)
sys.stdin.read()
"""


class Systemd:
    """The other end of NOTIFY_SOCKET: `messages` with the monotonic time at which each came."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.messages: list[tuple[float, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        while True:
            message = self._socket.recv(100).decode()
            self.messages.append((time.monotonic(), message))

    def wait(self, message: str, count: int = 1, within: float = 15.0) -> None:
        eventually(lambda: self.count(message) >= count, f"{count} x {message}", within)

    def count(self, message: str) -> int:
        return [received for _, received in self.messages].count(message)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with build(Topology()) as built:
        yield built


def start(lab: Lab, name: str) -> tuple[Services, Systemd, Process]:
    services = Services(lab.proxy)
    systemd = Systemd(lab.proxy.directory / "notify")
    program = (EXECUTABLES / name, "--config", services.config)
    watchdog = str(int(INTERVAL * 1e6))
    return services, systemd, lab.proxy.start(name, "sh", "-c", START, "sh", systemd.path, watchdog, *program)


def answers(services: Services, name: str) -> bool:
    socket = services.directory / "run" / ("sniffer.sock" if name == "mptcp-sniffer" else "daemon.sock")
    return "daemon" in (status := RpcClient(socket).call("status")) or "capturing" in status


@contextmanager
def main_thread_held(process: Process) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(process.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield
        with contextlib.suppress(BrokenPipeError):
            holder.communicate()


SERVICES = pytest.mark.parametrize("name", ["mptcp-sniffer", "mptcp-throttled"])


@SERVICES
def test_ready_is_said_when_the_socket_answers_and_stopping_at_the_end(lab: Lab, name: str) -> None:
    lab.proxy.run("iptables-legacy", "-t", "mangle", "-N", "MPTCP-THROTTLE")
    services, systemd, process = start(lab, name)
    systemd.wait("READY=1")
    assert answers(services, name)
    if name == "mptcp-throttled":
        assert "MPTCP-THROTTLE" not in lab.proxy.run("iptables-legacy", "-t", "mangle", "-S").stdout
    assert systemd.messages[0][1] == "READY=1"
    assert process.stop() == 0
    systemd.wait("STOPPING=1")
    assert systemd.count("READY=1") == systemd.count("STOPPING=1") == 1
    assert systemd.messages[-1][1] == "STOPPING=1"


@SERVICES
def test_pings_come_in_time_and_only_while_the_thread_that_matters_is_alive(lab: Lab, name: str) -> None:
    services, systemd, process = start(lab, name)
    systemd.wait("WATCHDOG=1", 6)
    times = [at for at, message in systemd.messages if message in {"READY=1", "WATCHDOG=1"}]
    assert max(after - before for before, after in pairwise(times)) < INTERVAL
    with main_thread_held(process):
        held_at = time.monotonic()
        time.sleep(2 * INTERVAL)
        assert answers(services, name)
        assert [at for at, _ in systemd.messages if at > held_at + INTERVAL / 4] == []
    pings = systemd.count("WATCHDOG=1")
    systemd.wait("WATCHDOG=1", pings + 2, within=5)
    assert process.stop() == 0
