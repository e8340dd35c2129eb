"""Child processes: commands that end by themselves, and programs that run until they are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from mptcp_lab import guest
from mptcp_lab.lab_errors import LabError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_POLL_SECONDS: Final = 0.02
_LOG_LINES: Final = 5
PATIENCE: Final = 20 if guest.inside() else 1
"""Factor for every time limit: a guest's emulated processor is ten times slower, and slower still beside other load."""


def run(
    argv: Sequence[str | Path], *, stdin: str | None = None, timeout: float = 30.0, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, at most `timeout` seconds. Raises LabError if it fails and `check` holds."""
    timeout *= PATIENCE
    command = " ".join(map(str, argv))
    try:
        # A session of its own: Ctrl-C in the terminal must not reach the commands of our clean-up.
        result = subprocess.run(
            argv, input=stdin, timeout=timeout, check=False, capture_output=True, text=True, start_new_session=True
        )
    except FileNotFoundError as error:
        raise LabError(f"{argv[0]}: not installed") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{command}: did not end in {timeout:g} s") from error
    if check:
        check_status(command, result)
    return result


def check_status(command: str, result: subprocess.CompletedProcess[str]) -> None:
    """Raise LabError if the exit status is not 0."""
    if result.returncode != 0:
        raise LabError(f"{command}: exit status {result.returncode}: {_one_line(result.stderr or result.stdout)}")


def descriptor_texts(pid: int) -> Iterator[str]:
    """The text in /proc/PID/fdinfo of each descriptor of a process; those that are closed by then are left out."""
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):
            yield file.read_text(encoding="ascii")


class Child(Protocol):
    """What `Process` needs of subprocess.Popen."""

    @property
    def pid(self) -> int:
        """The process id; it is not reused before the process has been waited for."""

    def poll(self) -> int | None:
        """None while the program runs; else its exit status, or minus the signal's number if one ended it."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; the exit status. Raises TimeoutExpired after `timeout` seconds."""

    def send_signal(self, sig: int) -> None:
        """Send a signal to the program while it runs."""


class Process:
    """A program in the background, in a session of its own, that writes to the file `log`."""

    def __init__(self, name: str, log: Path, child: Child) -> None:
        self.name = name
        self.log = log
        self._child = child

    @property
    def pid(self) -> int:
        """The process id; it is not reused before the process has been waited for."""
        return self._child.pid

    def prefer(self, nice: int) -> None:
        """Prefer the program and all that it starts to other programs, by the nice value of its session.

        The kernel divides processor time among sessions first (sched(7), autogroup), as systemd does with CPUWeight=
        among services. Without autogroup nothing happens. Raises LabError.
        """
        try:
            with suppress(FileNotFoundError):
                Path(f"/proc/{self.pid}/autogroup").write_text(f"{nice}", encoding="ascii")
        except OSError as error:
            raise LabError(f"{self.name}: cannot be given a weight: {error.strerror}") from error

    @property
    def exit_status(self) -> int | None:
        """None while the program runs; minus the signal's number if one ended it."""
        return self._child.poll()

    def wait(self, timeout: float) -> int:
        """Wait up to `timeout` seconds for the end; returns the exit status. Raises LabError if it does not come."""
        timeout *= PATIENCE
        try:
            return self._child.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise LabError(f"{self.name}: still runs after {timeout:g} s{self._last_lines()}") from error

    def terminate(self) -> None:
        """Send SIGTERM, and do not wait for the end."""
        self._child.send_signal(signal.SIGTERM)

    def stop(self, timeout: float = 5.0) -> int:
        """End the program: SIGTERM, and SIGKILL if it has not ended after `timeout` seconds; the exit status."""
        self.terminate()
        try:
            return self._child.wait(timeout * PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._child.wait()

    def kill(self) -> None:
        """End the program with SIGKILL, as a crash would."""
        self._child.send_signal(signal.SIGKILL)
        self._child.wait()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Inside the block the program and all that it started do nothing: SIGSTOP stops them."""
        os.killpg(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGCONT)

    def log_text(self) -> str:
        """All that the program logged so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_until(
        self, condition: Callable[[], bool], what: str, timeout: float = 10.0, *, poll: float = _POLL_SECONDS
    ) -> None:
        """Wait up to `timeout` seconds for a condition that this program brings about.

        Raises LabError, with the last lines of the log, if the program ends before or the time is over.
        """
        timeout *= PATIENCE
        deadline = time.monotonic() + timeout
        while not condition():
            if self.exit_status is not None:
                raise LabError(f"{self.name}: ended with status {self.exit_status}, not {what}{self._last_lines()}")
            if time.monotonic() > deadline:
                raise LabError(f"{self.name}: not {what} after {timeout:g} s{self._last_lines()}")
            time.sleep(poll)

    def _last_lines(self) -> str:
        lines = self.log_text().splitlines()[-_LOG_LINES:]
        return f"; its log ends: {_one_line(' | '.join(lines))}" if lines else "; its log is empty"


def start_process(name: str, argv: Sequence[str | Path], log: Path, output: Path | None = None) -> Process:
    """Start a program. Its stderr goes to the file `log`, its stdout to `output` or to `log` too.

    Its working directory is that of the log: core dumps and the like belong there.
    """
    with log.open("ab") as log_file, (output or log).open("ab") as output_file:
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output_file,
                stderr=log_file,
                cwd=log.parent,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise LabError(f"{argv[0]}: not installed") from error
    return Process(name, log, child)


def wait_until(condition: Callable[[], bool], what: str, timeout: float = 10.0) -> None:
    """Wait up to `timeout` seconds until the condition holds. Raises LabError, naming `what`, if it does not."""
    timeout *= PATIENCE
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"not {what} after {timeout:g} s")
        time.sleep(_POLL_SECONDS)


def _one_line(text: str) -> str:
    return " ".join(text.split())
