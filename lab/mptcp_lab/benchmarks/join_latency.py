"""How long a JOIN takes from its SYN to the class, the mark and the pace in the kernel, idle and beside a transfer.

The time of the SYN is the time stamp of its capture; those of the stages are taken when each is done: a mark is done
when the kernel has acknowledged it. Every subflow has its own rate, so that each JOIN needs a class, a mark and a pace.
A JOIN that the proxy's kernel counts and that is never marked is missed; for each of those the stages that it reached
are printed, and when its connection left the table.
"""

from __future__ import annotations

import json
import math
import re
import sys
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_address
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mptcp_lab.benchmarks.measure import PORT, command_line, unshaped, write_json
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.topology import WIFI, ClientSpec, Lab, build
from mptcp_lab.traffic import program, start_pour, start_server
from mptcp_throttle.model import Per
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mptcp_throttle.rpc import Json

_TRANSFER_PORT: Final = 8081
# Faster than the transfer: this measures when a rate is applied, not its effect.
_CAP: Final = Rate(8_000_000_000)
_STAGES: Final = ("proved", "published", "delivered", "paced", "classed", "marked")
_JOINED: Final = "MPTcpExtMPJoinAckRx"
_WAYS: Final = ("ours", "seed")
_LOADS: Final = ("idle", "transfer")
_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}

Times = list[dict[str, float]]
"""For each JOIN, when each stage was done, in seconds after its SYN; `closed`: the first of its two subflows was."""


def measure(way: str, rate: float, seconds: float, *, busy: bool, marks: str | None) -> dict[str, Json]:
    """The figures of `rate` JOINs per second for `seconds`; with `busy` beside a transfer."""
    with build(unshaped(ClientSpec(families=(4,)))) as lab:
        start_server(lab.proxy, PORT)
        before = _joins(lab)
        times: Times = []
        sniffer: dict[str, Any] = {}
        with (
            _ours(lab, times, sniffer, marks) if way == "ours" else _seeds(lab, times),
            _transfer(lab, seconds, busy=busy),
        ):
            lab.client.run(*program("join", PORT, rate, seconds, lab.proxy_address(4)), timeout=seconds + 60)
            joins = _joins(lab) - before - busy  # the transfer joins too
        done = sorted(of["marked"] for of in times if "marked" in of)
        missed = max(joins - len(done), 0)
    return {
        "way": way,
        "joins_per_second": rate,
        "beside_transfer": busy,
        "joins": joins,
        "missed": missed,
        **{name: _quantile(done, part) for name, part in _QUANTILES.items()},
        "stages_p50": _stages(times, 0.5),
        "stages_p99": _stages(times, 0.99),
        "missed_stages": [
            {stage: round(1000 * at, 2) for stage, at in of.items()} for of in times if "marked" not in of
        ],
        "missed_unseen": min(max(joins - len(times), 0), missed) if way == "ours" else None,
        "sniffer": {name: sniffer.get(name) for name in ("dropped", "counters")},
    }


def _quantile(ordered: list[float], part: float) -> float | None:
    if not ordered:
        return None
    return round(1000 * ordered[min(int(part * len(ordered)), len(ordered) - 1)], 2)


def _stages(times: Times, part: float) -> dict[str, float | None]:
    """The quantile `part` of the times at which each stage was done, in ms after the SYN."""
    done = {stage: sorted(of[stage] for of in times if stage in of) for stage in _STAGES}
    return {stage: _quantile(values, part) for stage, values in done.items() if values}


def _joins(lab: Lab) -> int:
    counters = lab.proxy.run("cat", "/proc/net/netstat").stdout
    names, values = re.findall(r"^MPTcpExt: (.*)$", counters, re.MULTILINE)
    return int(dict(zip(names.split(), values.split(), strict=True))[_JOINED.removeprefix("MPTcpExt")])


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
def _ours(lab: Lab, times: Times, sniffer: dict[str, Any], marks: str | None) -> Iterator[None]:
    wifi, ethernet = WIFI_FIRST
    services = Services(
        lab.proxy,
        (wifi, replace(ethernet, cap=_CAP, per=Per.SUBFLOW)),
        ports=(PORT, _TRANSFER_PORT),
        daemon={} if marks is None else {"marks": marks},
    )
    files = services.start_timed()
    services.wait_ready()
    yield
    sniffer.update(services.ask_sniffer("status"))
    services.stop()
    times += _paired(*(_notes(file) for file in files))


def _notes(file: Path) -> dict[str, dict[str, float]]:
    """The first time of every key, by stage; the key of a class is the subflow that is marked for it."""
    found: dict[str, dict[str, float]] = {}
    classed: dict[str, float] = {}
    for line in file.read_text(encoding="ascii").splitlines():
        stage, key, at = json.loads(line)
        if stage == "classed":
            classed[key] = at
            continue
        if stage == "marked":
            key, minor = key.split()
            found.setdefault("classed", {}).setdefault(key, classed.get(minor, math.nan))
        found.setdefault(stage, {}).setdefault(key, at)
    return found


def _paired(
    sniffer: Mapping[str, Mapping[str, float]], daemon: Mapping[str, Mapping[str, float]]
) -> Iterator[dict[str, float]]:
    """The stages of every JOIN to the echo server, in seconds after its SYN.

    The Wi-Fi subflow joins, and therefore the Ethernet subflow of the same connection is throttled.
    """
    throttled = {token: ends for token, ends in map(str.split, sniffer["proved"]) if not _is_wifi(ends)}
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


@contextmanager
def _seeds(lab: Lab, times: Times) -> Iterator[None]:
    program = (sys.executable, "-m", "mptcp_lab.benchmarks.seed_throttle")
    ends = (str(lab.proxy_address(4)), str(PORT), str(_TRANSFER_PORT))
    sniffer = lab.proxy.start("seed-sniff", *program, "sniff", *ends)
    steer = lab.proxy.start("seed-steer", *program, "steer", *ends)
    sniffer.wait_until(lambda: "capturing" in sniffer.log_text(), "capturing")
    yield
    sniffer.stop()
    steer.stop()
    for line in steer.log_text().splitlines():
        at, done = map(float, line.split())
        times.append({"marked": done - at})


def main() -> None:
    """Print a line per way, rate and load."""
    parser = command_line("join-latency", __doc__)
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[1, 50, 200], help="JOINs per second; default: 1 50 200"
    )
    parser.add_argument("--ways", nargs="+", choices=_WAYS, default=_WAYS)
    parser.add_argument("--loads", nargs="+", choices=_LOADS, default=_LOADS)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each; default: %(default)g")
    parser.add_argument("--marks", help="daemon.marks; default: as configured")
    options = parser.parse_args()
    rows = []
    headings = "".join(f" {name:>8}" for name in _QUANTILES)
    print(f"{'way':5} {'JOIN/s':>6} {'beside':8} {'JOINs':>6} {'missed':>6}{headings}  ms")
    for load, rate, way in product(options.loads, options.rates, options.ways):
        row = measure(way, rate, options.seconds, busy=load == "transfer", marks=options.marks)
        rows.append(row)
        quantiles = " ".join(f"{'-' if row[name] is None else row[name]:>8}" for name in _QUANTILES)
        print(f"{way:5} {rate:6g} {load:8} {row['joins']:6} {row['missed']:6} {quantiles}", flush=True)
        if way == "ours":
            for quantile in ("p50", "p99"):
                stages = (f"{stage} {at}" for stage, at in row[f"stages_{quantile}"].items())
                print(f"      {quantile} of the stages:", ", ".join(stages), flush=True)
            if row["missed"]:
                for reached in row["missed_stages"]:
                    print("      missed:", ", ".join(f"{stage} {at}" for stage, at in reached.items()) or "not proved")
                print("      missed, of which no SYN was captured:", row["missed_unseen"])
                print("      the sniffer:", json.dumps(row["sniffer"]), flush=True)
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
