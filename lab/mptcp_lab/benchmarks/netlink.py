"""Netlink through pyroute2 and through our own codec and socket, side by side, for each kind of message of ours.

Phases: encode the request, decode the answer, and the round trip, which is both and what the kernel does in between.
The two take turns. Times are microseconds of processor time, in user and in kernel mode. The kernel handles a netlink
request in the process that sends it, so on an idle machine the elapsed time (`--wall`) is the same, unless the kernel
waits for something.
"""

from __future__ import annotations

import time
from statistics import median, quantiles
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.benchmarks.netlink_kinds import Case, cases
from mptcp_lab.namespaces import in_namespace
from mptcp_lab.topology import Topology, build

if TYPE_CHECKING:
    from collections.abc import Callable

    Clock = Callable[[], float]

_MIN_REPEATS: Final = 4
_MAX_REPEATS: Final = 500


class Figures(NamedTuple):
    """Microseconds."""

    median: float
    p90: float
    worst: float


class Row(NamedTuple):
    """A phase of a kind of message; `ours` is None where we have no code for it."""

    message: str
    phase: str
    path: str
    done_by: str
    pyroute2: Figures
    ours: Figures | None


def measure(case: Case, seconds: float, clock: Clock) -> Row:
    """Time the calls of a case in turns, for about so many seconds."""
    calls = [call for call in (case.pyroute2, case.ours) if call is not None]
    times: list[list[float]] = [[] for _ in calls]
    deadline = time.monotonic() + seconds
    while len(times[0]) < _MIN_REPEATS or (time.monotonic() < deadline and len(times[0]) < _MAX_REPEATS):
        for taken, call in zip(times, calls, strict=True):
            case.prepare()
            began = clock()
            call()
            taken.append((clock() - began) * 1e6)
    # The first one warms up.
    theirs, *ours = (_figures(taken[1:]) for taken in times)
    return Row(case.message, case.phase, case.path, case.done_by, theirs, ours[0] if ours else None)


def _figures(times: list[float]) -> Figures:
    return Figures(median(times), quantiles(times, n=10, method="inclusive")[-1], max(times))


def _line(row: Row) -> str:
    shown = [
        "" if figures is None else f"{figures.median:.0f}, {figures.p90:.0f}, {figures.worst:.0f}"
        for figures in (row.pyroute2, row.ours)
    ]
    ratio = "" if row.ours is None else f"{row.pyroute2.median / row.ours.median:.1f}"
    return f"| {' | '.join([row.message, row.phase, row.path, *shown, ratio, row.done_by])} |"


def main() -> None:
    """Print a line per kind of message and phase."""
    parser = command_line("netlink", __doc__)
    parser.add_argument("--classes", type=int, default=2000, help="that are listed; default: %(default)s")
    parser.add_argument("--sockets", type=int, default=200, help="that are listed; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line; default: %(default)g")
    parser.add_argument("--wall", action="store_true", help="measure elapsed time, on a machine that is not busy")
    options = parser.parse_args()
    clock = time.perf_counter if options.wall else time.process_time
    rows = []
    print("| message | phase | path | pyroute2: median, p90, worst | ours: median, p90, worst | ratio | done by |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with build(Topology()) as lab, in_namespace(lab.proxy.namespace):
        for case in cases("eth0", options.classes, options.sockets):
            rows.append(measure(case, options.seconds, clock))
            print(_line(rows[-1]), flush=True)
    write_json(options.json, [row._asdict() for row in rows])


if __name__ == "__main__":
    main()
