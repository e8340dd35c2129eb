"""`lab/guest/run`: what it returns, what it leaves."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from polling import eventually

from mptcp_lab.guest import command, machine
from mptcp_lab.guest.machine import Machine
from mptcp_lab.lab_errors import LabError

KERNEL = "debian-6.12"
HANG = 300
"""Seconds after which a guest is taken to hang. One starts in ten, or in a minute beside other load."""

LINES = 300_000
"""Of output, 2 MB: more than all buffers between the guest and its reader hold."""

pytestmark = pytest.mark.usefixtures("stock_kernels")


def guest(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "mptcp_lab.guest", "--kernel", KERNEL, *map(str, arguments)]


@dataclass(frozen=True)
class Finished:
    """A command that ran in the directory `cwd`, with `share` to write to, and whose output was read late."""

    cwd: Path
    share: Path
    lines: list[str]
    errors: str
    status: int


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One start of the guest for all tests of a command that ends by itself."""
    cwd = tmp_path_factory.mktemp("cwd")
    share = cwd / "results with spaces"
    share.mkdir()
    script = f"""
    uname -r; id -u; pwd; command -v python; echo "$1"; ls -A "$TMPDIR"
    echo lost > lost; echo kept > "$1/kept"
    ls -d /sys/fs/cgroup/cgroup.procs /sys/kernel/tracing/trace
    grep -o '/sys/fs/bpf bpf' /proc/mounts
    echo to stderr > /dev/stderr
    sleep 60 &
    seq 1 {LINES}
    exit 77
    """
    command = guest("--timeout", str(HANG), "--share", share, "--", "sh", "-c", script, "sh", share)
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        assert runner.stderr is not None
        errors = runner.stderr.readline()  # written before `seq` starts; then nothing is read until the pipe is full
        eventually(lambda: sleeps_in_write(runner.pid), "stdout is full", within=HANG)
        output, more_errors = runner.communicate(timeout=HANG)
    return Finished(cwd, share, output.splitlines(), errors + more_errors, runner.returncode)


def sleeps_in_write(pid: int) -> bool:
    """Whether the process sleeps in write(2) to its stdout (proc_pid_syscall(5); system call 1 of x86-64)."""
    return Path(f"/proc/{pid}/syscall").read_text().startswith("1 0x1 ")


def test_command_runs_as_on_this_machine(finished: Finished) -> None:
    release, *lines = finished.lines[:-LINES]
    assert release.startswith("6.12.")
    assert lines == [
        *("0", str(finished.cwd), str(Path(sys.executable).parent / "python"), str(finished.share)),
        *("/sys/fs/cgroup/cgroup.procs", "/sys/kernel/tracing/trace", "/sys/fs/bpf bpf"),
    ]
    assert (finished.errors, finished.status) == ("to stderr\n", 77)


def test_only_files_of_a_share_persist(finished: Finished) -> None:
    assert [path for path in finished.cwd.rglob("*") if path.is_file()] == [finished.share / "kept"]


def test_output_arrives_completely_at_a_slow_reader(finished: Finished) -> None:
    assert finished.lines[-LINES:] == [str(number) for number in range(1, LINES + 1)]


def test_kernel_panic_is_reported_with_the_end_of_the_console() -> None:
    command = guest("--timeout", str(HANG), "--", "sh", "-c", "echo c > /proc/sysrq-trigger")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 125
    assert result.stderr.startswith("guest: the machine ended before the command did; its console ends:\n")
    assert "Kernel panic - not syncing: sysrq triggered crash" in result.stderr


@pytest.fixture
def panics(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[Machine]]:
    """Let the next so many machines panic while they boot; the list of those that are started from now on."""

    def let(number: int) -> list[Machine]:
        started: list[Machine] = []

        def start(of: Machine, *arguments: Any) -> Any:  # noqa: ANN401
            started.append(of)
            # Without an initramfs there is no root file system. One processor: no machine panics by itself (_BOOTS).
            initramfs = b"" if len(started) <= number else of.initramfs
            return start_machine(replace(of, initramfs=initramfs, processors=1), *arguments)

        start_machine = machine._start
        monkeypatch.setattr(machine, "_start", start)
        monkeypatch.setattr(sys, "argv", guest("--timeout", str(HANG), "--", "sh", "-c", "exit 7")[2:])
        return started

    return let


def test_kernel_that_panics_while_booting_is_started_again(panics: Callable[[int], list[Machine]]) -> None:
    started = panics(1)
    assert command.main("guest") == 7
    assert len(started) == 2


def test_kernel_that_panics_at_each_boot_is_reported(panics: Callable[[int], list[Machine]]) -> None:
    started = panics(3)
    with pytest.raises(LabError, match="Kernel panic - not syncing: "):
        command.main("guest")
    assert len(started) == 3


def children(parent: int) -> list[int]:
    """The child processes that still run."""
    running = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            match = re.fullmatch(r"(\d+) \(.*\) (\w) (\d+) .*\n", path.read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
        if match is not None and int(match[3]) == parent and match[2] != "Z":
            running.append(int(match[1]))
    return running


def names(pids: list[int]) -> list[str]:
    return sorted(Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids)


def run_still(pid: int) -> bool:
    try:
        return re.search(r"^State:\s+[ZX]", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE) is None
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("number", "status", "message"),
    [
        (signal.SIGKILL, -signal.SIGKILL, ""),
        (signal.SIGTERM, 143, "guest: interrupted by SIGTERM; everything is cleaned up\n"),
        (signal.SIGINT, 130, "guest: interrupted by SIGINT; everything is cleaned up\n"),
        (None, 124, "guest: the command did not end within 2 s; its console is empty\n"),
    ],
)
def test_no_process_is_left_however_the_guest_ends(number: int | None, status: int, message: str) -> None:
    timeout = "2" if number is None else str(HANG)
    with subprocess.Popen(
        guest("--timeout", timeout, "--", "sleep", "60"), stderr=subprocess.PIPE, text=True
    ) as runner:
        # A runner that is killed before its children have set PR_SET_PDEATHSIG leaves them behind.
        eventually(lambda: names(children(runner.pid)) == ["qemu-system-x86", "virtiofsd"], "both started")
        machine = children(runner.pid)
        if number is not None:
            runner.send_signal(number)
        assert (runner.wait(HANG), runner.communicate()[1]) == (status, message)
    eventually(lambda: not any(map(run_still, machine)), "qemu and virtiofsd ended")
