"""Netlink through pyroute2 and through our own codec and socket, side by side, for each kind of message of ours.

Phases: encode the request, decode the answer, and the round trip, which is both and what the kernel does in between.
The two take turns. Times are microseconds of processor time, in user and in kernel mode. The kernel handles a netlink
request in the process that sends it, so on an idle machine the elapsed time (`--wall`) is the same, unless the kernel
waits for something.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Final, NamedTuple

from pyroute2 import netns

from mptcp_lab.benchmarks.netlink_kinds import Kind, Pair, kinds
from mptcp_lab.topology import Topology, build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Clock = Callable[[], float]

_PHASES: Final = ("encode", "decode", "round_trip")
_MIN_REPEATS: Final = 4
_MAX_REPEATS: Final = 500


class Figures(NamedTuple):
    """Microseconds."""

    median: float
    p90: float
    worst: float


class Row(NamedTuple):
    """A phase of a kind of message; None where there is nothing to measure."""

    message: str
    phase: str
    path: str
    done_by: str
    pyroute2: Figures | None
    ours: Figures | None


def measure(kind: Kind, seconds: float, clock: Clock) -> Iterator[Row]:
    """The phases of a kind, each for about so many seconds."""
    for phase in _PHASES:
        pair: Pair | None = getattr(kind, phase)
        if pair is not None:
            calls = [call for call in pair if call is not None]
            prepare = kind.prepare if phase == "round_trip" else None
            theirs, ours = (*_alternate(calls, prepare, seconds, clock), None)[:2]
            yield Row(kind.name, phase.replace("_", " "), kind.path, kind.done_by, theirs, ours)


def _alternate(
    calls: list[Callable[[], object]], prepare: Callable[[], object] | None, seconds: float, clock: Clock
) -> list[Figures]:
    times: list[list[float]] = [[] for _ in calls]
    deadline = time.monotonic() + seconds
    while len(times[0]) < _MIN_REPEATS or (time.monotonic() < deadline and len(times[0]) < _MAX_REPEATS):
        for taken, call in zip(times, calls, strict=True):
            if prepare is not None:
                prepare()
            began = clock()
            call()
            taken.append((clock() - began) * 1e6)
    # The first one warms up.
    return [
        Figures(median(taken[1:]), quantiles(taken[1:], n=10, method="inclusive")[-1], max(taken[1:]))
        for taken in times
    ]


def _line(row: Row) -> str:
    shown = [
        "" if figures is None else f"{figures.median:.0f}, {figures.p90:.0f}, {figures.worst:.0f}"
        for figures in (row.pyroute2, row.ours)
    ]
    ratio = "" if row.pyroute2 is None or row.ours is None else f"{row.pyroute2.median / row.ours.median:.1f}"
    return f"| {' | '.join([row.message, row.phase, row.path, *shown, ratio, row.done_by])} |"


def main() -> int:
    """Print a line per kind of message and phase."""
    parser = argparse.ArgumentParser(prog="netlink", description=__doc__)
    parser.add_argument("--classes", type=int, default=2000, help="that are listed; default: %(default)s")
    parser.add_argument("--sockets", type=int, default=200, help="that are listed; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line; default: %(default)g")
    parser.add_argument("--wall", action="store_true", help="measure elapsed time, on a machine that is not busy")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE too")
    options = parser.parse_args()
    clock = time.perf_counter if options.wall else time.process_time
    rows = []
    print("| message | phase | path | pyroute2: median, p90, worst | ours: median, p90, worst | ratio | done by |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with build(Topology()) as lab:
        netns.pushns(lab.proxy.namespace)
        try:
            for kind in kinds("eth0", options.classes, options.sockets):
                for row in measure(kind, options.seconds, clock):
                    rows.append(row)
                    print(_line(row), flush=True)
        finally:
            netns.popns()
    if options.json is not None:
        options.json.write_text(json.dumps([row._asdict() for row in rows], indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
