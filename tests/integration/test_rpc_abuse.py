"""Slow, silent and malformed clients of the Unix sockets, in large numbers: the services serve all others."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from polling import eventually
from proxy_world import ProxyWorld, receive_rates
from rpc_requests import post, request

from mptcp_lab.kernel_dump import kernel_state
from mptcp_throttle.rpc import RpcClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from mptcp_lab.process import Process

IDLE: Final = 1000
SLOW: Final = 20
# systemd's DefaultLimitNOFILE.
DESCRIPTORS: Final = 1024
UNHINDERED: Final = 2.5
"""Seconds: half of what a silent client is granted. What is answered sooner has not waited for one."""

PROGRAM: Final = 10.0
"""Seconds in which our CLI starts on a machine that services, abusers and a download keep busy."""

DEEP: Final = "[" * 30_000 + "]" * 30_000
MALFORMED: Final = (
    b"\0" * 1000,
    b"GET / HTTP/1.1\r\n\r\n",
    b"x" * 90_000,
    post(b"{}", -1),
    post(b"{}", 10**9),
    post(b'{"jsonrpc": "2.0", "method": "reset_rate", "params": ["ethernet"], "id": 1}', 1000),
    post(b"\xff\xfe"),
    post(DEEP.encode()),
    post(b"9" * 60_000),
    post(b"[" + b'{"jsonrpc":"2.0","method":"status","id":1},' * 1000 + b"0]"),
    request("no_such_method"),
    request("status", 1),
    request("set_rate", {}, [], {}, float("nan"), float("inf")),
    request("set_rate", "ethernet", "downlink", "cap", "1mbit", 10**400),
    request("set_rate", "ethernet", "downlink", "cap", "x" * 50_000, None),
    request("set_rate", "ethernet", "downlink", "cap", "1mbit", None, "x" * 50_000),
    request("reset_rate", [[1]] * 1000),
    request("changes", None, "x", "y"),
    request("changes", "epoch", 0, float("nan")),
    request("changes", {}, 10**4000, 10**4000),
)


class Abuse:
    """From `begin` to `close`: 1000 silent connections, 20 that send byte by byte, and malformed requests all the time.

    A connection that the service drops is opened again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._over = threading.Event()
        self._threads = [threading.Thread(target=act) for act in (self._idle, self._slow, self._malformed)]
        self.opened = 0
        self.answers: list[bytes] = []

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()
        eventually(lambda: self.opened >= IDLE, f"{IDLE} connections", within=60)

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(10)
        try:
            sock.connect(str(self._path))
        except OSError:
            sock.close()
            raise
        return sock

    def _idle(self) -> None:
        idle: deque[socket.socket] = deque()
        while not self._over.wait(0.05):
            # The oldest is closed for each new one, dropped or not: a thousand stay open.
            for _ in range(10 if len(idle) == IDLE else IDLE):
                with contextlib.suppress(OSError):
                    idle.append(self._connect())
                    self.opened += 1
                if len(idle) > IDLE:
                    idle.popleft().close()
        for sock in idle:
            sock.close()

    def _slow(self) -> None:
        begin = post(b"", 60_000)
        slow: list[tuple[socket.socket, Iterator[int]]] = []
        while not self._over.wait(0.02):
            with contextlib.suppress(OSError):
                while len(slow) < SLOW:
                    slow.append((self._connect(), iter(begin + b"x" * 60_000)))
            for item in slow[:]:
                sock, rest = item
                try:
                    sock.send(bytes([next(rest)]))
                except OSError:
                    sock.close()
                    slow.remove(item)
        for sock, _ in slow:
            sock.close()

    def _malformed(self) -> None:
        while not self._over.wait(0.01):
            for malformed in MALFORMED:
                with contextlib.suppress(OSError), self._connect() as sock:
                    with contextlib.suppress(OSError):
                        sock.sendall(malformed)
                        sock.shutdown(socket.SHUT_WR)
                    answer = b""
                    while data := sock.recv(65536):
                        answer += data
                    self.answers.append(answer)


def status_of(process: Process, key: str) -> int:
    text = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    found = re.search(rf"^{key}:\s+(\d+)", text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def descriptors(process: Process) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def seconds(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


@pytest.fixture
def _many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 4 * IDLE), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("_many_descriptors")
def test_services_serve_other_clients_while_both_sockets_are_abused(world: ProxyWorld) -> None:
    services = world.services
    daemon, sniffer = world.daemon, world.sniffer
    for process in (daemon, sniffer):
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    started = daemon.log_text()
    memory = {process: status_of(process, "VmRSS") for process in (daemon, sniffer)}
    sockets = (services.sockets.daemon, services.sockets.sniffer)

    with contextlib.ExitStack() as abusers:
        abuses = [abusers.enter_context(contextlib.closing(Abuse(socket))) for socket in sockets]
        for abuse in abuses:
            abuse.begin()
        for socket in sockets:
            client = RpcClient(socket)
            waits = sorted(seconds(lambda: client.call("status")) for _ in range(50))  # noqa: B023
            assert waits[len(waits) // 2] < 0.5
            assert waits[-1] < UNHINDERED
        for _ in range(3):
            assert seconds(lambda: services.cli("status")) < PROGRAM + UNHINDERED
            assert services.cli_json("status")["capture"] is not None

        (capped,) = world.begin_capped()
        assert capped.join_to_cap is not None
        assert capped.join_to_cap < UNHINDERED
        assert seconds(lambda: services.cli("set-rate", "ethernet", "2mbit")) < PROGRAM + UNHINDERED
        assert [subflow.rate for subflow in world.capped()] == [2_000_000]
        world.wait_settled()
        assert receive_rates(world.lab.client, 3)["eth0"] < 2.6e6
        world.abort()

        for process in (daemon, sniffer):
            assert descriptors(process) < 200
            assert status_of(process, "Threads") < 100
            assert status_of(process, "VmRSS") < memory[process] + 50_000  # kB
        # Both stop promptly while they are abused.
        for process in (daemon, sniffer):
            assert seconds(process.stop) < 3
            assert process.exit_status == 0
    assert kernel_state(world.proxy) == world.original

    for abuse in abuses:
        answers = [answer for answer in abuse.answers if answer]
        assert len(answers) > len(MALFORMED)
        for answer in answers:
            assert b"Traceback" not in answer
            said = json.loads(answer.rpartition(b"\r\n\r\n")[2])
            assert "error" in said or said["result"] == {"resync": True}
    logs = daemon.log_text(), sniffer.log_text()
    assert "the sniffer does not answer" not in logs[0].removeprefix(started)
    assert max(len(line) for log in logs for line in log.splitlines()) < 400
