"""Do our services change what the kernel's own MPTCP selftests find? Each runs without them, and then beside them.

The selftests are those of Debian's source package of the guest's kernel. Beside them, our services run in each network
namespace in which a selftest listens. Of the selftests' subnets, the first is the most preferred one, and the others
have a cap. A test is judged if it passes without our services.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.argument_types import checked
from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.guest import kernels
from mptcp_lab.lab_errors import LabError
from mptcp_lab.process import run
from mptcp_lab.program import run_program
from mptcp_lab.selftests import sources
from mptcp_lab.selftests.comparison import Row, Verdict, compare, table, totals
from mptcp_lab.selftests.inside import RUNS
from mptcp_lab.selftests.results import outcomes, read_runs
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from mptcp_lab.selftests.results import Outcome, ScriptRun

_REPOSITORY: Final = Path(__file__).parents[3]
_BOOTSTRAP_SECONDS: Final = 900.0
_SECONDS: Final = 7200
_MEBIBYTES: Final = 2048
_CAP: Final = Rate(20_000_000)
_RATE: Final = checked(Rate.parse, "a rate such as 20mbit")
_COUNT: Final = checked(int, "1 or more", lambda count: count >= 1)
_SCRIPTS: Final = (
    # IPv4 only, and nothing at random: delay 5 ms, no loss, no reordering, no TSO, files of 100 kB.
    "mptcp_connect.sh -4 -d 5 -l 0 -r 0 -e tso -f 100000",
    # Subflows, announced addresses, endpoints. Without backups: those tests count MP_PRIO options, and so ours.
    "mptcp_join.sh -f -s -I",
    "simult_flows.sh",
    "mptcp_sockopt.sh",
)
"""What an emulated processor does in its time limits, or nearly so."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A script's end, and the outcomes of its tests."""

    run: ScriptRun
    outcomes: dict[str, Outcome]


def main() -> int:
    """Print a table for each script; 1 if a test that passed without our services did not always pass beside them."""
    options = _options()
    run([_REPOSITORY / "lab/bootstrap", "--guest"], timeout=_BOOTSTRAP_SECONDS)
    kernel = kernels.get(options.kernel, _report)
    directory = sources.get(kernel, _report)
    without: list[list[_Found]] = []
    beside: list[list[_Found]] = []
    with ExitStack() as stack:
        results = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number in range(options.runs):
            without.append(_run(options, directory, results / f"without-{number}", ()))
            ours = ("--cap", str(options.cap), *(["--paced"] if options.paced else []))
            beside.append(_run(options, directory, results / f"beside-{number}", ours))
    rows = [
        _print_script(before, after)
        for before, after in zip(zip(*without, strict=True), zip(*beside, strict=True), strict=True)
    ]
    write_json(options.json, {"rows": list(map(asdict, chain(*rows)))})
    print(totals([*chain(*rows)]))
    return int(any(row.verdict is Verdict.DIFFERENT for row in chain(*rows)))


def _options() -> argparse.Namespace:
    parser = command_line("kernel-selftests", __doc__)
    parser.epilog = "exit status: 0 no test is different; 1 one is; 2 wrong command line"
    parser.add_argument("--kernel", required=True, choices=kernels.NAMES)
    parser.add_argument("--runs", type=_COUNT, default=1, help="of each way, in turn; default: %(default)s")
    parser.add_argument(
        "--cap", type=_RATE, default=_CAP, help="default: %(default)s, the rate of the fastest link of the selftests"
    )
    parser.add_argument("--paced", action="store_true", help="daemon.steering is false, and uplinks have no cap")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep there what scripts printed, and our logs")
    parser.add_argument(
        "scripts", nargs="*", metavar="SCRIPT", help=f"with its options, quoted; default: {', '.join(_SCRIPTS)}"
    )
    return parser.parse_args()


def _report(line: str) -> None:
    print(f"kernel-selftests: {line}", file=sys.stderr, flush=True)


def _run(options: argparse.Namespace, directory: Path, results: Path, ours: Sequence[str]) -> list[_Found]:
    """Run all scripts in a guest. Raises LabError if one could not be run."""
    results.mkdir(parents=True)
    guest = ("--kernel", options.kernel, "--memory", _MEBIBYTES, "--timeout", _SECONDS, "--share", results.resolve())
    python = (_REPOSITORY / ".venv/bin/python", "-m", "mptcp_lab.selftests.inside")
    arguments = ("--sources", directory, "--results", results.resolve(), *ours, *(options.scripts or _SCRIPTS))
    argv = [*map(str, (_REPOSITORY / "lab/guest/run", *guest, "--", *python, *arguments))]
    _report(f"{options.kernel}: {'beside' if ours else 'without'} our services")
    status = subprocess.run(argv, stdout=sys.stderr, check=False).returncode
    if status != 0:
        raise LabError(f"{results}: not complete: the guest's exit status was {status}")
    runs = read_runs(results / RUNS)
    return [_Found(run, outcomes(run, (results / run.output).read_text("utf-8", "replace"))) for run in runs]


def _print_script(without: Sequence[_Found], beside: Sequence[_Found]) -> list[Row]:
    """Print the table of a script, and what our services did beside it."""
    rows = compare([found.outcomes for found in without], [found.outcomes for found in beside])
    print(f"{without[0].run.command}\n", *table(rows), sep="\n")
    for found in beside:
        counted = ", ".join(f"{name} {count}" for name, count in found.run.counters.items() if count)
        print(f"\nour services were started {found.run.services} times; counted: {counted or 'nothing'}")
    for way, each in (("without", without), ("beside", beside)):
        print(f"seconds {way}: {', '.join(f'{found.run.seconds:.0f}' for found in each)}")
    print(f"{totals(rows)}\n")
    return rows


if __name__ == "__main__":
    sys.exit(run_program("kernel-selftests", main))
