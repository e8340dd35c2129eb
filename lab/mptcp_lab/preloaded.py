"""Starts our programs without the second of processor time that Python takes to load each: tests start hundreds.

`python -m mptcp_lab.preloaded` loads them once, and forks itself for each request: a line of JSON from its standard
input. The new process has a session, a network namespace, files and arguments as if it had been started by itself.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from mptcp_lab.lab_errors import LabError
from mptcp_lab.namespaces import enter, mount_own_sys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SERVICES: Final = {
    "mptcp-sniffer": "mptcp_sniffer.main",
    "mptcp-throttled": "mptcp_throttled.main",
    "mptcp-throttle-web": "mptcp_throttle_web.main",
}
"""Their modules, by their names."""

_CLI: Final = "mptcp-throttle"
_CLI_MODULE: Final = "mptcp_throttle.cli.main"

_LOADED_LATE: Final = ("iptc", "mptcp_throttle.cli.doctor")
"""What our programs load only when they need it: for the classifier `rules` (with setuptools), and for one command."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A program to start. `output` and `errors` are files, to which it appends; that of `output` is its directory.

    With `machine_files` it sees /sys as the machine does.
    """

    program: str
    module: str
    arguments: Sequence[str]
    namespace: str
    environment: Mapping[str, str]
    output: str
    errors: str
    machine_files: bool

    def become(self) -> None:
        """Make this process what the request asks for, but for the program."""
        os.setsid()
        with open(os.devnull, "rb") as nothing, open(self.output, "ab") as output, open(self.errors, "ab") as errors:
            for file, descriptor in ((nothing, 0), (output, 1), (errors, 2)):
                os.dup2(file.fileno(), descriptor)
        os.chdir(os.path.dirname(self.output))
        os.environ.clear()
        os.environ.update(self.environment)
        time.tzset()
        enter(self.namespace)
        if not self.machine_files:
            mount_own_sys()
        with open("/proc/self/comm", "w", encoding="ascii") as name:
            name.write(self.program)
        sys.argv = [self.program, *self.arguments]


class _Loader:
    """The process that loads the services and forks them."""

    def __init__(self) -> None:
        own, its = socket.socketpair()
        with own, its:
            command = [sys.executable, "-m", "mptcp_lab.preloaded"]
            self._process = subprocess.Popen(command, stdin=its.fileno(), stdout=its.fileno(), start_new_session=True)
            self._channel = own.makefile("rw")

    def ask(self, request: object) -> int:
        """The answer to a request. Raises LabError if the process has ended."""
        print(json.dumps(request), file=self._channel, flush=True)
        answer = self._channel.readline()
        if not answer:
            raise LabError("mptcp_lab.preloaded: ended")
        return int(answer)

    def close(self) -> None:
        """End it."""
        self._channel.close()
        self._process.wait()


class Preloaded:
    """Starts our services. The process that forks them begins with the first; `close` ends it, and none of them."""

    def __init__(self) -> None:
        self._loader: _Loader | None = None
        self._one_at_a_time = threading.Lock()

    def close(self) -> None:
        """End the process that forks. The exit statuses of what it has started are lost."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None

    def start(
        self,
        program: str,
        module: str,
        arguments: Sequence[str],
        *,
        namespace: str,
        environment: Mapping[str, str],
        log: Path,
    ) -> PreloadedChild:
        """Start `main` of a module in a network namespace, as `program`.

        `environment` is what it has beside ours.
        """
        whole = {**os.environ, **environment}
        return self._fork(
            _Request(program, module, arguments, namespace, whole, str(log), str(log), machine_files=True)
        )

    def run_cli(
        self, arguments: Sequence[str], *, namespace: str, environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run `mptcp-throttle` to its end, as `start`. Raises TimeoutExpired after `timeout` seconds."""
        whole = {**os.environ, **environment}
        with TemporaryDirectory() as directory:
            output, errors = f"{directory}/output", f"{directory}/errors"
            child = self._fork(
                _Request(_CLI, _CLI_MODULE, arguments, namespace, whole, output, errors, machine_files=False)
            )
            try:
                status = child.wait(timeout)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
                child.wait()
                raise
            return subprocess.CompletedProcess(
                [_CLI, *arguments], status, Path(output).read_text(), Path(errors).read_text()
            )

    def _fork(self, request: _Request) -> PreloadedChild:
        return PreloadedChild(self, request.program, self._ask(asdict(request)))

    def exit_status(self, pid: int) -> int:
        """The exit status of a program that has ended; its process id may be used again."""
        return self._ask(pid)

    def _ask(self, request: object) -> int:
        with self._one_at_a_time:
            if self._loader is None:
                self._loader = _Loader()
            return self._loader.ask(request)


class PreloadedChild:
    """A program that `Preloaded` has started, with the methods of subprocess.Popen that `mptcp_lab.process` uses."""

    def __init__(self, preloaded: Preloaded, name: str, pid: int) -> None:
        self.pid = pid
        self._preloaded = preloaded
        self._name = name
        self._status: int | None = None
        self._descriptor = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """The exit status, None while the program runs; minus the signal's number if one ended it."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status once the program has ended. Raises TimeoutExpired after `timeout` seconds."""
        if self._status is None:
            ended = select.poll()
            ended.register(self._descriptor, select.POLLIN)
            if not ended.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired(self._name, timeout or 0)
            os.close(self._descriptor)
            self._status = self._preloaded.exit_status(self.pid)
        return self._status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _serve() -> _Request:
    """Fork for each request; returns in the new processes. Ends with the requests."""
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        if isinstance(request, int):
            _, status = os.waitpid(request, 0)
            _answer(1, os.waitstatus_to_exitcode(status))
        elif os.fork() == 0:
            answers = os.dup(1)
            try:
                wanted = _Request(**request)
                wanted.become()
                return wanted
            finally:
                _answer(answers, os.getpid())
                os.close(answers)
    sys.exit()


def _answer(descriptor: int, number: int) -> None:
    os.write(descriptor, b"%d\n" % number)


if __name__ == "__main__":
    for name in (*SERVICES.values(), _CLI_MODULE, *_LOADED_LATE):
        importlib.import_module(name)
    gc.freeze()
    sys.exit(importlib.import_module(_serve().module).main())
