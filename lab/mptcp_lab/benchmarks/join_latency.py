"""How long a JOIN takes from its SYN to the pace and to the class assignment, alone and beside a transfer.

Steering is off: with it, only connections that have lasted a second get class assignments. Every subflow has its own
rate, so that each JOIN needs a class, an assignment to it, and a pace. What is capped is the joining subflow, or its
sibling: the first subflow of the connection.

`paced` is when the socket has its pace, as the kernel reports (`join_observer`). `marked` is when the kernel has
acknowledged the class assignment; the stages of the services note this, and the SYN has the time stamp of its capture.
A JOIN that the proxy's kernel counts is missed if it is never paced, or marked. For each that is not marked, the stages
that it reached are printed, and when its connection left the table.

`--fleet` measures each case also while the proxy shares budgets by a server, which is healthy, or not (`fleet_states`).
"""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mptcp_lab import namespaces
from mptcp_lab.benchmarks.fleet_states import ALONE, STATES, in_state, sharing, with_budgets
from mptcp_lab.benchmarks.join_observer import Delays, JoinObserver
from mptcp_lab.benchmarks.measure import PORT, command_line, unshaped, write_json
from mptcp_lab.lab_errors import LabError
from mptcp_lab.percentiles import percentile
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.topology import WIFI, ClientSpec, Lab, build
from mptcp_lab.traffic import program, start_pour, start_server
from mptcp_throttle.model import AccessNetwork, Per, RateKind
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mptcp_throttle.rpc import Json

_TRANSFER_PORT: Final = 8081
# Faster than the transfer: this measures when a rate is applied, not its effect.
_CAP: Final = Rate(8_000_000_000)
_STAGES: Final = ("proved", "published", "delivered", "paced", "classed", "marked")
_JOINED: Final = "MPTcpExtMPJoinAckRx"
_LOADS: Final = ("idle", "transfer")
_CAPPED: Final = ("joiner", "sibling")
_PERCENTILES: Final = {"p50": 50, "p90": 90, "p99": 99, "max": 100}

Times = list[dict[str, float]]
"""For each JOIN, when each stage was done, in seconds after its SYN; `closed`: the first of its two subflows was."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: `rate` JOINs per second for `seconds`, `capped` in each; with `busy` beside a transfer."""

    capped: str
    rate: float
    seconds: float
    busy: bool
    daemon: Mapping[str, object]
    fleet: str = ALONE

    @property
    def joiner(self) -> bool:
        """Whether the joining subflow is capped."""
        return self.capped == "joiner"


@dataclass(slots=True)
class _Noted:
    """`times` is what the services note, `delays` the kernel's account."""

    times: Times = field(default_factory=list)
    delays: list[Delays] = field(default_factory=list)
    sniffer: dict[str, Any] = field(default_factory=dict)


def measure(case: Case) -> dict[str, Json]:
    """The figures of one case, in milliseconds."""
    noted = _Noted()
    with build(unshaped(ClientSpec(families=(4,)))) as lab:
        start_server(lab.proxy, PORT)
        before = lab.proxy.counter(_JOINED)
        with _observed(lab, case, noted), _transfer(lab, case.seconds, busy=case.busy):
            arguments = ("join", PORT, case.rate, case.seconds, lab.proxy_address(4))
            lab.client.run(*program(*arguments), timeout=case.seconds + 60)
            joins = lab.proxy.counter(_JOINED) - before - case.busy  # the transfer joins too
    times = noted.times
    marked = _percentiles(joins, [of["marked"] for of in times if "marked" in of])
    return {
        "capped": case.capped,
        "fleet": case.fleet,
        "joins_per_second": case.rate,
        "beside_transfer": case.busy,
        "joins": joins,
        "established": _percentiles(joins, [delays.established for delays in noted.delays]),
        "paced": _percentiles(joins, [delays.paced for delays in noted.delays]),
        "marked": marked,
        "stages_p50": _stages(times, 50),
        "stages_p99": _stages(times, 99),
        "missed_stages": [
            {stage: round(1000 * at, 2) for stage, at in of.items()} for of in times if "marked" not in of
        ],
        "missed_unseen": min(max(joins - len(times), 0), marked["missed"]),
        "sniffer": {name: noted.sniffer.get(name) for name in ("dropped", "counters")},
    }


def _percentiles(joins: int, done: Sequence[float]) -> dict[str, Any]:
    """How many of the JOINs are missed, and the percentiles of the rest in ms."""
    missed = {"missed": max(joins - len(done), 0)}
    return missed | {name: _milliseconds(done, percent) for name, percent in _PERCENTILES.items()}


def _milliseconds(values: Sequence[float], percent: float) -> float | None:
    return round(1000 * percentile(values, percent), 3) if values else None


def _stages(times: Times, percent: float) -> dict[str, float | None]:
    """The percentile of the times at which each stage was done, in ms after the SYN."""
    done = {stage: [of[stage] for of in times if stage in of] for stage in _STAGES}
    return {stage: _milliseconds(values, percent) for stage, values in done.items() if values}


@contextmanager
def _transfer(lab: Lab, seconds: float, *, busy: bool) -> Iterator[None]:
    if not busy:
        yield
        return
    pour = start_pour(lab.proxy, _TRANSFER_PORT)
    drain = lab.client.start("drain", *program("drain", _TRANSFER_PORT, seconds + 1, lab.proxy_address(4)))
    yield
    drain.stop()
    pour.stop()


@contextmanager
def _observed(lab: Lab, case: Case, noted: _Noted) -> Iterator[None]:
    of_case = with_budgets(networks(joiner=case.joiner), case.fleet)
    services = Services(lab.proxy, of_case, ports=(PORT, _TRANSFER_PORT), daemon=dict(case.daemon))
    with sharing(services, case.fleet) as server:
        files = services.start_timed()
        services.wait_ready()
        services.check_kernel_program()
        if services.daemon is None:
            raise LabError("mptcp-throttled: not started")
        namespace, pid = namespaces.path(lab.proxy.namespace), services.daemon.pid
        with in_state(server), JoinObserver(namespace, PORT, pid, joiner=case.joiner) as observer:
            yield
            noted.delays = observer.paced()
        noted.sniffer = services.ask_sniffer("status")
        services.stop()
    noted.times = list(paired(*(_notes(file) for file in files), joiner=case.joiner))


def networks(*, joiner: bool) -> tuple[AccessNetwork, AccessNetwork]:
    """A cap for each subflow over the network that joins, or over the one that begins."""
    wifi, ethernet = WIFI_FIRST
    preferred, capped = (ethernet, wifi) if joiner else (wifi, ethernet)
    return (
        replace(preferred, preference=1).with_rates({RateKind.CAP: None}),
        replace(capped, preference=2, per=Per.SUBFLOW).with_rates({RateKind.CAP: _CAP}),
    )


def _notes(file: Path) -> dict[str, dict[str, float]]:
    """The first time of every key, by stage; the key of a class is the subflow that is assigned to it."""
    notes: dict[str, dict[str, float]] = {}
    classed: dict[str, float] = {}
    for line in file.read_text(encoding="ascii").splitlines():
        stage, key, at = json.loads(line)
        if stage == "classed":
            classed[key] = at
            continue
        if stage == "marked":
            key, minor = key.split()
            notes.setdefault("classed", {}).setdefault(key, classed.get(minor, math.nan))
        notes.setdefault(stage, {}).setdefault(key, at)
    return notes


def paired(
    sniffer: Mapping[str, Mapping[str, float]], daemon: Mapping[str, Mapping[str, float]], *, joiner: bool
) -> Iterator[dict[str, float]]:
    """The stages of every JOIN to the echo server, in seconds after its SYN.

    The Wi-Fi subflow joins, and therefore it is throttled (`joiner`), or the Ethernet subflow of the same connection.
    """
    throttled = {token: ends for token, ends in map(str.split, sniffer["proved"]) if _is_wifi(ends) == joiner}
    closed = sniffer.get("closed", {})
    for key, asked in sniffer["asked"].items():
        token, ends = key.split()
        if not _is_wifi(ends) or not ends.endswith(f":{PORT}"):
            continue
        stages = {stage: sniffer.get(stage, {}).get(key) for stage in ("proved", "published")}
        stages["delivered"] = daemon.get("delivered", {}).get(key)
        stages |= {
            stage: daemon.get(stage, {}).get(throttled.get(token, "")) for stage in ("paced", "classed", "marked")
        }
        stages["closed"] = min(
            filter(None, (closed.get(key), closed.get(f"{token} {throttled.get(token)}"))), default=None
        )
        yield {stage: at - asked for stage, at in stages.items() if at is not None}


def _is_wifi(ends: str) -> bool:
    return ip_address(ends.split(":")[0]) in WIFI.v4


def main() -> None:
    """Print two lines per capped subflow, rate and load."""
    parser = command_line("join-latency", __doc__)
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[1, 50, 200, 1000], help="JOINs per second; default: 1 50 200 1000"
    )
    parser.add_argument("--capped", nargs="+", choices=_CAPPED, default=_CAPPED)
    parser.add_argument("--loads", nargs="+", choices=_LOADS, default=_LOADS)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each; default: %(default)g")
    parser.add_argument("--fleet", nargs="+", choices=STATES, default=[ALONE], help="of each; default: alone")
    parser.add_argument("--classifier", help="daemon.classifier; default: as configured")
    options = parser.parse_args()
    daemon: dict[str, object] = {"steering": False}
    if options.classifier is not None:
        daemon["classifier"] = options.classifier
    rows = []
    headings = "".join(f" {name:>8}" for name in _PERCENTILES)
    print(f"{'fleet':11} {'capped':8} {'JOIN/s':>6} {'beside':8} {'JOINs':>6} {'until':7} {'missed':>6}{headings}  ms")
    for load, rate, capped, fleet in product(options.loads, options.rates, options.capped, options.fleet):
        row = measure(Case(capped, rate, options.seconds, load == "transfer", daemon, fleet))
        rows.append(row)
        _print(row, load)
    write_json(options.json, rows)


def _print(row: Mapping[str, Any], load: str) -> None:
    for figure in ("paced", "marked"):
        percentiles = " ".join(f"{'-' if (at := row[figure][name]) is None else at:>8}" for name in _PERCENTILES)
        print(
            f"{row['fleet']:11} {row['capped']:8} {row['joins_per_second']:6g} {load:8} {row['joins']:6}"
            f" {figure:7} {row[figure]['missed']:6} {percentiles}",
            flush=True,
        )
    for percent in ("p50", "p99"):
        stages = (f"{stage} {at}" for stage, at in row[f"stages_{percent}"].items())
        print(f"      {percent} of the stages:", ", ".join(stages), flush=True)
    if row["marked"]["missed"]:
        for reached in row["missed_stages"]:
            print("      not marked:", ", ".join(f"{stage} {at}" for stage, at in reached.items()) or "not proved")
        print("      not marked, of which no SYN was captured:", row["missed_unseen"])
        print("      the sniffer:", json.dumps(row["sniffer"]), flush=True)


if __name__ == "__main__":
    main()
