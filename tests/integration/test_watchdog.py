"""sd_notify(3): READY once the socket answers, WATCHDOG while the main thread is alive, STOPPING at the end."""

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
from polling import eventually
from proxy_world import EXECUTABLES, unique

from mptcp_lab.services import Services
from mptcp_lab.topology import Lab
from mptcp_throttle.rpc import RpcClient

if TYPE_CHECKING:
    from mptcp_lab.process import Process

INTERVAL = 2.0

# As systemd does: the variable names the process that is to serve the watchdog.
START = 'export NOTIFY_SOCKET="$1" WATCHDOG_USEC="$2" WATCHDOG_PID=$$; shift 2; exec "$@"'

# Stops one thread; the others run on. The thread goes on when this program ends (ptrace(2)).
STOP_THREAD = """
import ctypes, os, sys
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
thread = int(sys.argv[1])
for request in (0x4206, 0x4207):  # PTRACE_SEIZE, PTRACE_INTERRUPT: include/uapi/linux/ptrace.h
    if ptrace(request, thread, None, None):
        sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(thread, 0x40000000)  # __WALL: include/uapi/linux/wait.h
print("stopped", flush=True)
sys.stdin.read()
"""


class Systemd:
    """The other end of NOTIFY_SOCKET: `messages`, each with the monotonic time of its arrival."""

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

    def wait(self, message: str, count: int = 1, within: float = 30.0) -> None:
        eventually(lambda: self.count(message) >= count, f"{count} x {message}", within)

    def count(self, message: str) -> int:
        return [received for _, received in self.messages].count(message)


def start(lab: Lab, name: str) -> tuple[Services, Systemd, Process]:
    services = Services(lab.proxy, name=unique(name))
    systemd = Systemd(services.directory / "notify")
    program = (EXECUTABLES / name, "--config", services.config)
    watchdog = str(int(INTERVAL * 1e6))
    return services, systemd, lab.proxy.start(name, "sh", "-c", START, "sh", systemd.path, watchdog, *program)


def answers(services: Services, name: str) -> bool:
    socket = services.sockets.sniffer if name == "mptcp-sniffer" else services.sockets.daemon
    return "daemon" in (status := RpcClient(socket).call("status")) or "captured" in status


@contextmanager
def main_thread_stopped(process: Process) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", STOP_THREAD, str(process.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tracer:
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == "stopped\n"
        yield
        with contextlib.suppress(BrokenPipeError):
            tracer.communicate()


SERVICES = pytest.mark.parametrize("name", ["mptcp-sniffer", "mptcp-throttled"])


@SERVICES
def test_ready_and_stopping_are_sent_once_and_when_true(lab: Lab, name: str) -> None:
    if name == "mptcp-throttled":
        lab.proxy.run("iptables-legacy", "-t", "mangle", "-N", "MPTCP-THROTTLE")
    services, systemd, process = start(lab, name)
    systemd.wait("READY=1")
    assert answers(services, name)
    if name == "mptcp-throttled":
        assert "MPTCP-THROTTLE" not in lab.proxy.run("iptables-legacy", "-t", "mangle", "-S").stdout
    assert process.stop() == 0
    systemd.wait("STOPPING=1")
    states = [message for _, message in systemd.messages if not message.startswith(("FDSTORE", "WATCHDOG"))]
    assert states == ["READY=1", "STOPPING=1"]


@SERVICES
def test_watchdog_pings_stop_with_the_main_thread(lab: Lab, name: str) -> None:
    services, systemd, process = start(lab, name)
    systemd.wait("WATCHDOG=1", 4)
    times = [at for at, message in systemd.messages if message in {"READY=1", "WATCHDOG=1"}]
    assert max(after - before for before, after in pairwise(times)) < INTERVAL
    with main_thread_stopped(process):
        stopped_at = time.monotonic()
        time.sleep(1.5 * INTERVAL)  # three times as long as between two pings
        assert answers(services, name)
        assert [at for at, _ in systemd.messages if at > stopped_at + INTERVAL / 4] == []
    pings = systemd.count("WATCHDOG=1")
    systemd.wait("WATCHDOG=1", pings + 2)
    assert process.stop() == 0
