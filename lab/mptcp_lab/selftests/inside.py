"""`python -m mptcp_lab.selftests.inside`: runs selftests on this kernel, a guest's, which is ours alone."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab import guest
from mptcp_lab.lab_errors import LabError
from mptcp_lab.process import PATIENCE
from mptcp_lab.program import run_program
from mptcp_lab.selftests.beside import Beside, ControlGroups, networks
from mptcp_lab.selftests.results import ScriptRun, write_runs
from mptcp_lab.selftests.sources import SELFTESTS
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Sequence

RUNS: Final = "runs.json"
"""The file in the directory of results."""

_TOOLS: Final = ("ping", "sysctl")
"""What selftests call that not every Debian has; busybox has it, too."""

_TIMEOUT: Final = """\
#!/bin/sh
# The limits of the selftests for a program are for a real processor, and go on while the selftest is frozen.
limit=$1
shift
exec {timeout} $((limit * {factor})) "$@"
"""

_ENTER: Final = 'echo $$ >"$0/cgroup.procs" && exec "$@"'


def main() -> int:
    """Run the scripts one after the other."""
    parser = argparse.ArgumentParser(prog="inside", description=__doc__)
    parser.add_argument("--sources", type=Path, required=True, help="as selftests/sources.py returns it")
    parser.add_argument("--results", type=Path, required=True, help="a directory that is kept")
    parser.add_argument("--cap", type=Rate.parse, help="beside our services, with this cap; without it: without them")
    parser.add_argument("--paced", action="store_true", help="daemon.steering is false, and uplinks have no cap")
    parser.add_argument("commands", nargs="+", metavar="COMMAND", help="a script with its options")
    options = parser.parse_args()
    if not guest.inside():
        raise LabError("must be run in a guest: it changes the machine's control groups")
    runs = []
    for number, command in enumerate(options.commands):
        print(f"{command} ...", file=sys.stderr, flush=True)
        directory = Path(tempfile.mkdtemp())
        runs.append(_run(command, _copy(options.sources), directory, options, options.results / f"{number}.txt"))
        _keep_logs(directory, options.results / f"{number}")
        write_runs(options.results / RUNS, runs)
    return 0


def _copy(sources: Path) -> Path:
    """The scripts and programs in a directory where they may write; some call what is beside their directory."""
    copy = Path(tempfile.mkdtemp()) / "net"
    shutil.copytree(sources / SELFTESTS, copy)
    return copy / "mptcp"


def _run(command: str, selftests: Path, directory: Path, options: argparse.Namespace, output: Path) -> ScriptRun:
    with ExitStack() as stack:
        groups = stack.enter_context(ControlGroups())
        beside = None
        if options.cap is not None:
            settings = {"steering": False} if options.paced else {}
            capped = networks(options.cap, uplinks=not options.paced)
            beside = stack.enter_context(Beside(selftests, directory, groups, capped, settings))
        file = stack.enter_context(output.open("wb"))
        began = time.monotonic()
        status = subprocess.run(
            ["sh", "-c", _ENTER, groups.script, "bash", *_script(command)],
            cwd=selftests,
            env={**os.environ, "PATH": f"{_tools(directory)}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
        seconds = time.monotonic() - began
        if beside is not None:
            beside.check()
    started, counters = (0, {}) if beside is None else (beside.started, beside.counters)
    return ScriptRun(command, status, round(seconds, 1), output.name, started, counters)


def _script(command: str) -> Sequence[str]:
    script, *words = shlex.split(command)
    return f"./{script}", *words


def _tools(directory: Path) -> Path:
    """A directory with a patient timeout(1), and with those of `_TOOLS` that this machine lacks."""
    tools = directory / "tools"
    tools.mkdir()
    patient = tools / "timeout"
    patient.write_text(_TIMEOUT.format(timeout=shutil.which("timeout"), factor=PATIENCE), encoding="utf-8")
    patient.chmod(0o755)
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            (tools / tool).symlink_to(shutil.which("busybox") or "busybox")
    return tools


def _keep_logs(directory: Path, kept: Path) -> None:
    for log in directory.glob("*/*.log"):
        (kept / log.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(log, kept / log.parent.name)


if __name__ == "__main__":
    sys.exit(run_program("inside", main))
