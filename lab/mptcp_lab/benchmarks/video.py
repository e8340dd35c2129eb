"""What an overflow costs and spares a video: a player over Wi-Fi whose rate varies, five ways with the same trace.

The player (see `player` and `playback`) fetches segments of 4 s over one connection through Squid, and adapts their
bitrate, 0.5 to 5 Mb/s, to its buffer of at most 24 s. What Wi-Fi carries changes every 2 to 5 s, at random between 1
and 12 Mb/s; each factor is as likely, so that the mean of 4.4 Mb/s is less than the highest bitrate needs. Ethernet,
the expensive network, has 10 Mb/s.

Side by side: plain TCP over Wi-Fi alone, MPTCP without our services, Ethernet capped to 1 Mb/s, the same with an
overflow, and two that are computed. `ideal` is the same player with an overflow that knows at once what Wi-Fi carries:
what the rule itself costs. `optimum` is offline, of a player that knows the trace beforehand: the least that Ethernet
must carry so that the bitrates of the uncapped way do not stall.

The overflow, 6 Mb/s by default, has room for the highest bitrate: 5 Mb/s are 5.3 with all headers, and with the rest
the buffer recovers. `Ethernet MB` is what the client's Ethernet has received, with headers: the expensive bytes.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from mptcp_lab import oracle
from mptcp_lab.benchmarks.goodput import PAYLOAD_PART
from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.lab_errors import LabError
from mptcp_lab.origin import start_origin
from mptcp_lab.playback import LADDER, MOST_BUFFERED_SECONDS, SEGMENT_SECONDS, Playback, Played
from mptcp_lab.process import wait_until
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.squid import PORT, start_squid
from mptcp_lab.topology import ETHERNET, WIFI, ClientSpec, Lab, Topology, build
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

WAYS: Final = ("wifi", "uncapped", "cap", "overflow")
IDEAL: Final = "ideal"
OPTIMUM: Final = "optimum"
"""Computed, not measured."""

_WIFI_RATES: Final = (1_000_000, 12_000_000)
_STEP_SECONDS: Final = (2.0, 5.0)
_POLL_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 120.0
_AS_WITH_DELAY: Final = {"net/ipv4/tcp_tso_rtt_log": "0"}
"""At 1 Mb/s TCP sends 10 kB at once over a path without delay, which looks like a pause to steering.

Over one of 16 ms or more it sends 3 kB, as with this (`tcp_tso_autosize`, net/ipv4/tcp_output.c).
"""
_KILO: Final = 10**3
_MEGA: Final = 10**6

MOST_OF_OPTIMUM: Final = 1.3
LEAST_OF_BITRATE: Final = 0.98
"""Targets of the overflow: its Ethernet bytes beside the optimum, and its bitrate beside the uncapped way's."""


@dataclass(frozen=True, slots=True)
class Step:
    """From `at` (seconds) on, Wi-Fi carries `rate` bits/s, with headers."""

    at: float
    rate: int


@dataclass(frozen=True, slots=True)
class Needed:
    """A segment of `size` bytes, with headers: not requested before `released`, needed at `due` (seconds)."""

    size: float
    released: float
    due: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one way: megabytes over Ethernet, how often and for how many seconds it stalled, the mean bitrate in Mb/s."""

    way: str
    ethernet: float
    stalls: int
    stalled: float
    bitrate: float


def wifi_trace(seed: int, seconds: float) -> tuple[Step, ...]:
    """The steps of so many seconds; the last one goes on."""
    numbers, steps, at = random.Random(seed), [], 0.0  # noqa: S311
    while at < seconds:
        rate = math.exp(numbers.uniform(*map(math.log, _WIFI_RATES)))
        steps.append(Step(at, round(rate / _KILO) * _KILO))
        at += numbers.uniform(*_STEP_SECONDS)
    return tuple(steps)


def least_ethernet(trace: Sequence[Step], segments: Sequence[Needed]) -> float:
    """The bytes that Wi-Fi cannot carry of segments, in the order in which they are due, each until it is due.

    Wi-Fi carries the earliest segment first, which wastes the least. Ethernet may carry the rest at any rate, so this
    is a lower bound.
    """
    free, lacking = 0.0, 0.0
    for segment in segments:
        carried, free = _carry(trace, max(free, segment.released), segment.due, segment.size)
        lacking += segment.size - carried
    return lacking


def _carry(trace: Sequence[Step], begin: float, end: float, size: float) -> tuple[float, float]:
    """How many of `size` bytes Wi-Fi carries from `begin` to `end`, and when it is free again."""
    left, at = size, begin
    ends = [*(step.at for step in trace[1:]), math.inf]
    for step, step_ends in zip(trace, ends, strict=True):
        until = min(step_ends, end)
        if until > at:
            carried = min(left, step.rate / 8 * (until - at))
            left -= carried
            if left <= 0:
                return size, at + carried * 8 / step.rate
            at = until
    return size - left, at


def ideal_overflow(trace: Sequence[Step], segments: int, cap: Rate, overflow: Rate) -> tuple[list[Played], float]:
    """How the player plays when Ethernet always carries what Wi-Fi lacks of `overflow`, or the cap; and its bytes."""
    playback, at, over_ethernet = Playback(), 0.0, 0.0
    in_all = [Step(step.at, max(step.rate + cap.bits_per_second, overflow.bits_per_second)) for step in trace]
    for _ in range(segments):
        at += playback.seconds_until_room(at)
        bitrate = playback.next_bitrate(at)
        size = _size(bitrate)
        _, arrived = _carry(in_all, at, math.inf, size)
        over_wifi, _ = _carry(trace, at, arrived, size)
        over_ethernet += size - over_wifi
        playback.add(bitrate, at, arrived)
        at = arrived
    return playback.segments, over_ethernet


def _size(bitrate: int) -> float:
    """Of a segment, in bytes with headers."""
    return bitrate / 8 * SEGMENT_SECONDS / PAYLOAD_PART


def needed(segments: Sequence[Played]) -> list[Needed]:
    """What a player must have to play the same as `segments` without a stall.

    A segment may be requested once the buffer has room for it.
    """
    first = segments[0].requested
    return [
        Needed(
            _size(segment.bitrate),
            max(first, segment.due + SEGMENT_SECONDS - MOST_BUFFERED_SECONDS),
            segment.due,
        )
        for segment in segments
    ]


def figures(way: str, segments: Sequence[Played], ethernet_bytes: float) -> Figures:
    """Those of the segments that were played that way."""
    stalls = [segment.stalled for segment in segments if segment.stalled]
    bitrate = sum(segment.bitrate for segment in segments) / len(segments)
    return Figures(way, ethernet_bytes / _MEGA, len(stalls), sum(stalls), bitrate / _MEGA)


def verdicts(by_way: Mapping[str, Figures]) -> Iterator[str]:
    """A line for each target of the overflow, with what it has reached."""
    overflow, uncapped, optimum = (by_way[way] for way in ("overflow", "uncapped", OPTIMUM))
    most, least = MOST_OF_OPTIMUM * optimum.ethernet, LEAST_OF_BITRATE * uncapped.bitrate
    for is_met, text in (
        (
            overflow.stalls <= uncapped.stalls,
            f"stalls: {overflow.stalls}, allowed {uncapped.stalls}",
        ),
        (
            overflow.bitrate >= least,
            f"mean bitrate: {overflow.bitrate:.2f} Mb/s, at least {least:.2f}",
        ),
        (
            overflow.ethernet <= most,
            f"Ethernet: {overflow.ethernet:.1f} MB, at most {most:.1f}, {MOST_OF_OPTIMUM:g} times the optimum",
        ),
    ):
        yield f"{'met' if is_met else 'missed'}: {text}"
    yield f"saving against uncapped: {100 * (1 - overflow.ethernet / uncapped.ethernet):.0f} % of the Ethernet bytes"


class Bench:
    """The hosts, for one playback after the other."""

    def __init__(self, lab: Lab, urls: Sequence[str], overflow: Rate) -> None:
        self._lab = lab
        self._urls = urls
        self._overflow = overflow
        self._numbers = count()

    def play(self, way: str, trace: Sequence[Step], segments: int) -> tuple[list[Played], int]:
        """The segments, with times from the beginning of the trace, and the bytes over Ethernet. Raises LabError."""
        client, number = self._lab.client, next(self._numbers)
        output = client.directory / f"player-{number}"
        alone = ("--tcp", "--from", str(client.address(WIFI, 4))) if way == "wifi" else ()
        options = (*alone, "--segments", str(segments))
        proxy = (str(self._lab.proxy_address(4)), str(PORT))
        with self._services(way, number):
            before = client.received_bytes(ETHERNET.interface)
            self._shape_wifi(trace[0].rate)
            began = time.monotonic()
            program = (sys.executable, "-m", "mptcp_lab.player", *proxy, *options, *self._urls)
            process = client.start(f"player-{number}", *program, output=output)
            for step in trace[1:]:
                while process.exit_status is None and (left := began + step.at - time.monotonic()) > 0:
                    time.sleep(min(left, _POLL_SECONDS))
                if process.exit_status is not None:
                    break
                self._shape_wifi(step.rate)
            if process.wait(_PATIENCE_SECONDS) != 0:
                raise LabError(f"player: {process.log_text()}")
            wait_until(lambda: not oracle.listed(self._lab.proxy, PORT), "all subflows ended", 30)
            ethernet_bytes = client.received_bytes(ETHERNET.interface) - before
        played = [Played(**segment) for segment in json.loads(output.read_text(encoding="ascii"))]
        return [segment.later(-began) for segment in played], ethernet_bytes

    @contextmanager
    def _services(self, way: str, number: int) -> Iterator[None]:
        wifi, ethernet = WIFI_FIRST
        networks = {"cap": WIFI_FIRST, "overflow": (wifi, replace(ethernet, overflow=self._overflow))}
        if way not in networks:
            yield
            return
        with Services(self._lab.proxy, networks[way], name=f"throttle-{number}") as services:
            services.check_kernel_program()
            yield

    def _shape_wifi(self, rate: int) -> None:
        """Shape what the client receives over Wi-Fi."""
        interface = f"{self._lab.client.name}-{WIFI.interface}"
        self._lab.router.tc([f"qdisc replace dev {interface} root tbf burst 16384 latency 50ms rate {Rate(rate)}"])


@contextmanager
def bench(overflow: Rate) -> Iterator[Bench]:
    """Build the hosts; the proxy speaks BBR, and the origin has a document for each bitrate."""
    with build(Topology(clients=(ClientSpec(families=(4,)),))) as lab:
        lab.proxy.sysctl({"net/ipv4/tcp_congestion_control": "bbr", **_AS_WITH_DELAY})
        start_squid(lab.proxy)
        origin = start_origin(lab.origin)
        base = f"http://{lab.origin_address(4)}"
        urls = [f"{base}/{origin.add_zeros(round(bitrate / 8 * SEGMENT_SECONDS))}" for bitrate in LADDER]
        yield Bench(lab, urls, overflow)


def main() -> None:
    """Print a table and the targets for each seed."""
    parser = command_line("video", __doc__)
    parser.add_argument("--seconds", type=float, default=90.0, help="of the video; default: %(default)g")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="of the traces; default: 1")
    parser.add_argument("--overflow", type=Rate.parse, default=Rate(6_000_000), help="default: %(default)s")
    options = parser.parse_args()
    segments = math.ceil(options.seconds / SEGMENT_SECONDS)
    rows: list[dict[str, Any]] = []
    with bench(options.overflow) as here:
        for seed in options.seeds:
            print(f"{'seed':>4} {'way':10}{'Ethernet MB':>12}{'stalls':>8}{'stalled s':>11}{'Mb/s':>7}", flush=True)
            by_way: dict[str, Figures] = {}
            for row, played in _measured(here, wifi_trace(seed, 2 * options.seconds), segments, options.overflow):
                by_way[row.way] = row
                print(
                    f"{seed:4} {row.way:10}{row.ethernet:12.2f}{row.stalls:8}{row.stalled:11.2f}{row.bitrate:7.2f}",
                    flush=True,
                )
                rows.append({"seed": seed, **asdict(row), "segments": [asdict(segment) for segment in played]})
            print("\n".join(verdicts(by_way)), flush=True)
    write_json(options.json, {"overflow": options.overflow.bits_per_second, "rows": rows})


def _measured(
    here: Bench, trace: Sequence[Step], segments: int, overflow: Rate
) -> Iterator[tuple[Figures, Sequence[Played]]]:
    """The figures of each way, and its segments with times from the beginning of the trace."""
    by_way: dict[str, list[Played]] = {}
    for way in WAYS:
        by_way[way], ethernet_bytes = here.play(way, trace, segments)
        yield figures(way, by_way[way], ethernet_bytes), by_way[way]
    _, ethernet = WIFI_FIRST
    ideal, over_ethernet = ideal_overflow(trace, segments, ethernet.rates[RateKind.CAP], overflow)
    yield figures(IDEAL, ideal, over_ethernet), ideal
    uncapped = by_way["uncapped"]
    optimum = figures(OPTIMUM, uncapped, least_ethernet(trace, needed(uncapped)))
    yield replace(optimum, stalls=0, stalled=0.0), ()


if __name__ == "__main__":
    main()
