"""What an experiment leaves in its directory: result.json, and per run CSV files of all samples."""

from __future__ import annotations

import csv
import json
import os
import platform
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mptcp_lab import process
from mptcp_lab.curve import Curve
from mptcp_lab.lab_errors import LabError
from mptcp_lab.port import Port
from mptcp_lab.sampler import last_seen
from mptcp_lab.scenario.files import DIRECTORY
from mptcp_lab.scenario.judge import Statistic, summarise
from mptcp_lab.scenario.plan import Addresses
from mptcp_lab.scenario.recording import Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mptcp_lab.sampler import SubflowSample
    from mptcp_lab.scenario.recording import Recording
    from mptcp_lab.scenario.scenario_schema import Scenario

FILE: Final = "result.json"
_SUBFLOW_COLUMNS: Final = (
    *("at_s", "host", "link", "local", "remote", "acked_bytes", "received_bytes", "cwnd_segments", "rtt_ms"),
    *("pacing_bps", "retransmits", "out_of_order"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its figures, how long it took, the idle share of the processors, what was done; or why it failed.

    `windows`: begin and end of each; `caps`: when a cap of a subflow of that network changed, and to what (Mb/s).
    `subflows`: what each socket had carried when it was last seen, up to one interval before its end.
    """

    figures: Mapping[str, float | None]
    seconds: float
    idle: float
    events: Sequence[Event]
    error: str | None = None
    windows: Mapping[str, Sequence[float]] = field(default_factory=dict)
    caps: Sequence[Sequence[Any]] = ()
    subflows: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """An experiment's runs on one kernel (`kernel` as asked for, `release` as uname(1) says).

    `file` is relative to the lab's scenarios if it is one of them. `commit` ends with `-dirty` if the checkout had
    changes, and is empty without git. `fingerprints`: of the set-up and the figures, as they were.
    """

    name: str
    file: str
    commit: str
    kernel: str
    release: str
    congestion_control: str
    processors: int
    time_scale: float
    seed: int
    runs: Sequence[Run]
    directory: Path
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    @property
    def statistics(self) -> dict[str, Statistic | None]:
        """Every figure over all runs."""
        names = dict.fromkeys(name for run in self.runs for name in run.figures)
        return {name: summarise(run.figures.get(name) for run in self.runs) for name in names}

    @property
    def idle(self) -> Statistic | None:
        """The idle share of the processors in percent."""
        return summarise(run.idle * 100 for run in self.runs if run.error is None)

    @property
    def errors(self) -> list[str]:
        """The errors of the runs that failed."""
        return [run.error for run in self.runs if run.error is not None]


def directory_of(out: Path, kernel: str, name: str) -> Path:
    """Where an experiment's results are: `OUT/KERNEL/SET/SCENARIO[/VARIANT]`."""
    return out.joinpath(kernel, *name.replace(":", "/").split("/"))


def environment() -> dict[str, Any]:
    """What numbers depend on: code, kernel, its default congestion control, number of processors."""
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()
    return {
        "commit": current_commit(),
        "release": platform.release(),
        "congestion_control": control,
        "processors": os.cpu_count() or 1,
    }


def current_commit() -> str:
    """The commit of the checkout, with `-dirty` appended if something is changed; empty if it is unknown."""
    describe = ("describe", "--always", "--dirty", "--abbrev=7", "--exclude=*")
    try:
        return process.run(["git", "-C", DIRECTORY, *describe], check=False).stdout.strip()
    except LabError:  # git is not installed
        return ""


def write_samples(directory: Path, number: int, scenario: Scenario, recording: Recording) -> None:
    """`interfaces-N.csv`, `subflows-N.csv` and `counters-N.csv` of run number N."""
    link_of = Addresses(scenario).links()
    _write(
        directory / f"interfaces-{number}.csv",
        ("at_s", "host", "interface", "link", "received_bytes", "sent_bytes"),
        (
            (f"{s.at:.3f}", s.port.host, s.port.interface, scenario.link_of(s.port), s.received, s.sent)
            for s in recording.interfaces
        ),
    )
    _write(
        directory / f"subflows-{number}.csv",
        _SUBFLOW_COLUMNS,
        (
            (
                *(f"{at:.3f}", host, link_of.get(s.local, "")),
                *(f"{s.local} {s.local_port}", f"{s.remote} {s.remote_port}"),
                *(s.acked, s.received, s.cwnd, f"{s.rtt * 1000:.3f}", s.pacing, s.retransmits, s.out_of_order),
            )
            for at, host, s in recording.subflows
        ),
    )
    _write(
        directory / f"counters-{number}.csv",
        ("host", "counter", "increase"),
        ((host, name, n) for host, counters in recording.counters.items() for name, n in counters.items() if n),
    )


def subflow_totals(scenario: Scenario, samples: Iterable[SubflowSample]) -> list[dict[str, Any]]:
    """The payload bytes of each subflow and TCP socket, and its packets with payload."""
    link_of = Addresses(scenario).links()
    return [
        {
            "host": host,
            "link": link_of.get(socket.local, ""),
            "local": f"{socket.local} {socket.local_port}",
            "remote": f"{socket.remote} {socket.remote_port}",
            "received_bytes": socket.received,
            "received_packets": socket.packets_received,
            "acked_bytes": socket.acked,
            "sent_packets": socket.packets_sent,
        }
        for _, host, socket in last_seen(samples)
    ]


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def received_curves(directory: Path) -> list[tuple[str, Curve]]:
    """What each port has received in run 1, in bytes; none if there is no `interfaces-1.csv`."""
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    try:
        with (directory / "interfaces-1.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                port = str(Port(row["host"], row["interface"]))
                points[port].append((float(row["at_s"]), float(row["received_bytes"])))
    except FileNotFoundError:
        return []
    return [(port, Curve(of_port)) for port, of_port in points.items()]


def write_result(result: Result) -> None:
    """`result.json`."""
    fields = ("name", "file", "commit", "kernel", "release", "congestion_control", "processors", "time_scale", "seed")
    data: dict[str, Any] = {field: getattr(result, field) for field in fields}
    data["fingerprints"] = dict(result.fingerprints)
    data["figures"] = {
        name: None if statistic is None else {key: round(value, 4) for key, value in statistic._asdict().items()}
        for name, statistic in result.statistics.items()
    }
    data["runs"] = [
        {
            "figures": {name: None if v is None else round(v, 4) for name, v in run.figures.items()},
            "seconds": round(run.seconds, 3),
            "idle": round(run.idle, 4),
            "events": [{"at_s": round(event.at, 3), "text": event.text} for event in run.events],
            "error": run.error,
            "windows": {label: [round(at, 3) for at in window] for label, window in run.windows.items()},
            "caps": [(round(at, 3), network, mbps) for at, network, mbps in run.caps],
            "subflows": [*run.subflows],
        }
        for run in result.runs
    ]
    (result.directory / FILE).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def read_results(directory: Path) -> list[Result]:
    """All results below a directory, sorted by kernel and name. Raises LabError if there is none or one is unusable."""
    paths = sorted(directory.rglob(FILE))
    if not paths:
        raise LabError(f"{directory}: has no results; allowed: a directory that `mptcp-lab run --out` has written")
    return [_read(path) for path in paths]


def _read(path: Path) -> Result:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        del data["figures"]
        runs = [
            Run(**run | {"events": [Event(event["at_s"], event["text"]) for event in run["events"]]})
            for run in data.pop("runs")
        ]
        return Result(**data, runs=runs, directory=path.parent)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LabError(f"{path}: is not a result of mptcp-lab: {error}") from error
