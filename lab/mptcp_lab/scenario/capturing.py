"""Captures flows where they arrive, for the figures that need that."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from mptcp_lab.capture_reader.capture_file import Damaged, read_frames
from mptcp_lab.disorder.arrivals import LINK_TYPE, find_arrivals
from mptcp_lab.disorder.summary import Disorder, summarise
from mptcp_lab.lab_errors import LabError
from mptcp_lab.scenario.plan import server_port
from mptcp_lab.scenario.scenario_schema import OF_CAPTURES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mptcp_lab.process import Process
    from mptcp_lab.scenario.scenario_schema import Scenario
    from mptcp_lab.scenario.world import World

_SNAP_BYTES: Final = 120
"""The headers: 20 of the link, 40 of IPv6, 60 of TCP."""

_BUFFER_KIB: Final = 32_768
_STABLE_SECONDS: Final = 0.5
_WRITTEN_SECONDS: Final = 30.0
_COMPLETE: Final = 0.999
"""The part of the packets that must be there: the flow may still send while tcpdump ends."""

_COUNTED: Final = re.compile(
    r"(?P<captured>\d+) packets? captured\n"
    r"(?P<received>\d+) packets? received by filter\n"
    r"(?P<lost>\d+) packets? dropped by kernel"
)


@contextmanager
def captured(scenario: Scenario, world: World) -> Iterator[dict[str, Disorder]]:
    """Capture the flows that figures are about. Yields a mapping that gets the disorder of each when the block ends.

    Raises LabError if a capture is not complete.
    """
    names = {getattr(figure, kind) for figure in scenario.report.values() for kind in OF_CAPTURES} - {None}
    captures = {name: _start(scenario, world, name) for name in sorted(names)}
    disorder: dict[str, Disorder] = {}
    yield disorder
    for name, (process, file) in captures.items():
        _wait_written(file)
        process.stop()
        disorder[name] = _read(name, process, file, server_port(scenario, name))


def _start(scenario: Scenario, world: World, name: str) -> tuple[Process, Path]:
    file = world.directory / f"{name}.pcap"
    # tcpdump's own user could not write there.
    what = ("-i", "any", "-y", LINK_TYPE, "-s", str(_SNAP_BYTES), f"tcp dst port {server_port(scenario, name)}")
    options = ("-Z", "root", "--immediate-mode", "-U", "-B", str(_BUFFER_KIB), "-w", file)
    process = world.hosts[scenario.flows[name].receiver].start(f"capture-{name}", "tcpdump", *options, *what)
    process.wait_until(lambda: "listening on" in process.log_text(), "capturing")
    return process, file


def _wait_written(file: Path) -> None:
    """Wait until tcpdump has written what it has received: at its end it does not. Raises LabError if it never has."""
    size, since, end = -1, 0.0, time.monotonic() + _WRITTEN_SECONDS
    while size != file.stat().st_size or time.monotonic() < since + _STABLE_SECONDS:
        if size != file.stat().st_size:
            size, since = file.stat().st_size, time.monotonic()
            if since > end:
                raise LabError(f"{file.name}: packets still arrive {_WRITTEN_SECONDS:g} s after the run")
        time.sleep(_STABLE_SECONDS / 10)


def _read(name: str, process: Process, file: Path, port: int) -> Disorder:
    counted = _COUNTED.search(process.log_text())
    if counted is None or int(counted["captured"]) < _COMPLETE * int(counted["received"]) or counted["lost"] != "0":
        raise LabError(f"capture of flow {name}: is not complete: {' '.join(process.log_text().split())}")
    try:
        with file.open("rb") as frames:
            connections = find_arrivals(read_frames(frames), port)
    except Damaged as error:
        raise LabError(f"capture of flow {name}: {error}") from error
    # iperf3 has a second connection, for control.
    largest = max(connections.values(), key=lambda arrivals: sum(arrival.size for arrival in arrivals), default=())
    try:
        return summarise(largest)
    except ValueError as error:
        raise LabError(f"capture of flow {name}: {error}") from error
