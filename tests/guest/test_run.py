"""`lab/guest/run` itself: what it returns, what it leaves."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from polling import eventually

KERNEL = "debian-6.12"


def guest(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "mptcp_lab.guest", "--kernel", KERNEL, *map(str, arguments)]


def run(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(guest(*arguments), cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_a_command_runs_as_here_and_only_what_it_writes_to_a_share_stays(tmp_path: Path) -> None:
    share = tmp_path / "results with spaces"
    share.mkdir()
    script = """
    uname -r; id -u; pwd; command -v python; echo "$1"; ls -A "$TMPDIR"
    echo lost > lost; echo kept > "$1/kept"
    ls -d /sys/fs/cgroup/cgroup.procs /sys/kernel/tracing/trace
    grep -o '/sys/fs/bpf bpf' /proc/mounts
    echo to stderr > /dev/stderr
    sleep 60 &
    exit 77
    """
    result = run("--share", share, "--", "sh", "-c", script, "sh", share, cwd=tmp_path)
    release, *lines = result.stdout.splitlines()
    assert release.startswith("6.12.")
    assert lines == [
        *("0", str(tmp_path), str(Path(sys.executable).parent / "python"), str(share)),
        *("/sys/fs/cgroup/cgroup.procs", "/sys/kernel/tracing/trace", "/sys/fs/bpf bpf"),
    ]
    assert (result.stderr, result.returncode) == ("to stderr\n", 77)
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()] == [
        Path("results with spaces/kept")
    ]


def test_all_output_arrives_however_slow_its_reader() -> None:
    with subprocess.Popen(guest("--", "seq", "1", "300000"), stdout=subprocess.PIPE) as runner:
        assert runner.stdout is not None
        output = runner.stdout.read(1)
        time.sleep(3)  # the command ends, with most of its output still inside the machine
        output += runner.stdout.read()
    assert output == "".join(f"{number}\n" for number in range(1, 300001)).encode()
    assert runner.returncode == 0


def test_a_machine_that_dies_is_told_with_its_last_words() -> None:
    result = run("--", "sh", "-c", "echo c > /proc/sysrq-trigger")
    assert result.returncode == 125
    assert result.stderr.startswith("guest: the machine ended before the command did; its console ends:\n")
    assert "Kernel panic - not syncing: sysrq triggered crash" in result.stderr


def children(parent: int) -> list[int]:
    """The child processes that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            match = re.fullmatch(r"(\d+) \(.*\) (\w) (\d+) .*\n", path.read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
        if match is not None and int(match[3]) == parent and match[2] != "Z":
            found.append(int(match[1]))
    return found


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
def test_nothing_is_left_running_however_it_ends(number: int | None, status: int, message: str) -> None:
    timeout = "2" if number is None else "60"
    with subprocess.Popen(
        guest("--timeout", timeout, "--", "sleep", "60"), stderr=subprocess.PIPE, text=True
    ) as runner:
        # Who is killed before its children have asked to die with it (PR_SET_PDEATHSIG) leaves them behind.
        eventually(lambda: names(children(runner.pid)) == ["qemu-system-x86", "virtiofsd"], "both started")
        machine = children(runner.pid)
        if number is not None:
            runner.send_signal(number)
        assert (runner.wait(10), runner.communicate()[1]) == (status, message)
    eventually(lambda: not any(map(run_still, machine)), "qemu and virtiofsd ended", within=2)
