"""Benchmarks on Debian's stock kernels: the same program, with the same options, in a guest."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from mptcp_lab import guest
from mptcp_lab.lab_errors import LabError
from mptcp_lab.process import run
from mptcp_lab.scenario.kernel_choice import allow_congestion_controls, native_has
from mptcp_lab.topology import recommended_for_old_kernels
from mptcp_throttle.cli.doctor.kernel_checks import respects_notsent_lowat

CONGESTION_CONTROLS: Final = ("bbr", "cubic", "reno")
KERNELS: Final = ("native", "debian-6.1", "debian-6.12")

_REPOSITORY: Final = Path(__file__).parents[3]
_TIMEOUT_SECONDS: Final = 14_400
_ATTEMPTS: Final = 2


def missing(kernel: str, delay: tuple[int, int], *needs: str) -> str:
    """What that kernel does not have of these congestion controls and qdiscs, and of netem for the delays."""
    needs = (*needs, "netem") if delay != (0, 0) else needs
    return ", ".join(need for need in dict.fromkeys(needs) if kernel == "native" and not native_has(need))


def results_of_guest(benchmark: str, kernel: str, *narrowed: str) -> Any:  # noqa: ANN401
    """What this program, run with the same options and these in a guest, has written to the file of `--inside`.

    A guest whose kernel dies is started once more, and if that dies, too, there are no results: [].
    """
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "results.json"
        guest_options = ("--kernel", kernel, "--share", directory, "--timeout", str(_TIMEOUT_SECONDS))
        narrowed = ("--kernels", kernel, *narrowed, "--inside", str(out))
        python = (f"{_REPOSITORY}/.venv/bin/python", "-m", f"mptcp_lab.benchmarks.{benchmark}")
        argv = [f"{_REPOSITORY}/lab/guest/run", *guest_options, "--", *python, *sys.argv[1:], *narrowed]
        for _ in range(_ATTEMPTS):
            try:
                run(argv, timeout=_TIMEOUT_SECONDS)
                return json.loads(out.read_text(encoding="utf-8"))
            except LabError as error:
                print(f"{kernel} {' '.join(narrowed)}: {error}", file=sys.stderr)
    return []


def set_up_guest(*, recommended: bool = True) -> None:
    """In a guest, which is ours alone, allow all congestion controls, and set what we recommend; elsewhere nothing."""
    if not guest.inside():
        return
    allow_congestion_controls(set(CONGESTION_CONTROLS))
    for path, value in recommended_for_old_kernels().items() if recommended and not respects_notsent_lowat() else ():
        Path("/proc/sys", path).write_text(value, encoding="ascii")
