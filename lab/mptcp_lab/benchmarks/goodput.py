"""What a cap costs the user: goodput with no cap, with the usual method and with ours.

Each transfer is a download or an upload through Squid over Ethernet (10 Mb/s) and Wi-Fi (56 Mb/s; 40 for uploads). The
usual methods: `seed` is HTB alone, for downloads; `ifb` is HTB on an IFB device, for uploads, as traffic shapers do it.
The rates begin with the connection, or in mid-transfer, and end in mid-transfer. "Permitted" is the payload that both
rates together can carry: 1428 of the 1514 bytes of a full frame (Ethernet 14, IPv4 20, TCP with time stamps 32, DSS
20).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from itertools import chain, count, groupby, pairwise, product
from pathlib import Path
from statistics import median
from typing import Any, Final

from mptcp_lab.background import Background
from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.benchmarks.stock_kernels import (
    CONGESTION_CONTROLS,
    KERNELS,
    missing,
    results_of_guest,
    set_up_guest,
)
from mptcp_lab.curve import MEGA, Curve
from mptcp_lab.download import Download
from mptcp_lab.guest import kernels
from mptcp_lab.guest_client import GuestClient
from mptcp_lab.host import Host
from mptcp_lab.origin import Document, Origin, start_origin
from mptcp_lab.percentiles import spread
from mptcp_lab.process import wait_until
from mptcp_lab.sampler import PathMeter, Sampler
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.squid import start_squid
from mptcp_lab.topology import ETHERNET, WIFI, Client, ClientSpec, Lab, Topology, build
from mptcp_lab.upload import Upload
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.uplink.program import FORGIVEN_SECONDS

DELAYS: Final = ((0, 0), (5, 15), (15, 50))
CAPS: Final = {
    "down": ((1.0, 40.0), (4.0, 20.0), (0.25, 10.0)),
    # Uploads have a cap on Ethernet; the other rate is that of the Wi-Fi.
    "up": ((1.0, 40.0), (4.0, 40.0), (0.25, 40.0)),
}
VARIANTS: Final = {"down": ("none", "seed", "ours"), "up": ("none", "ifb", "ours")}
BEGINS: Final = ("mid-transfer", "connection")

_UPLINK_WIFI: Final = Rate(40_000_000)
PAYLOAD_PART: Final = 1428 / 1514
"""Of every full frame."""

# After the loss that ends its slow start, CUBIC takes K = 5.7 s (RFC 9438, section 4.2) at 56 Mb/s, with 50 ms of delay
# and 50 ms of queue. A transfer that is throttled before has not reached its full rate yet.
_BEFORE_SECONDS: Final = 6.0
_AFTER_SECONDS: Final = 1.5
_DRAIN_SECONDS: Final = {"down": 1.5, "up": FORGIVEN_SECONDS}  # DRAIN_NS of throttle.bpf.c
_POLL_SECONDS: Final = 0.01
_CONNECT_SECONDS: Final = 60.0  # a client in a guest boots first
_COUNTERS_SECONDS: Final = 10.0
_LOW_IS_BAD: Final = "percent_of_permitted"
_COLUMNS: Final = {
    _LOW_IS_BAD: ("% of the permitted", 1),
    "start_gap": ("gap at begin, s", 3),
    "hold_gap": ("gap in between, s", 3),
    "end_gap": ("gap at end, s", 3),
    "worst_window": ("5 s / cap", 3),
    "start_excess": ("excess of drain, B", None),
}
"""The heading of each figure, and how many decimals are shown."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured: `delay` in ms and `caps` in Mb/s, of Ethernet and Wi-Fi; `begin`: when the rates do.

    `kernel` is the proxy's, and the client's too unless it has one of its own.
    """

    kernel: str
    cc: str
    delay: tuple[int, int]
    caps: tuple[float, float]
    variant: str
    begin: str = BEGINS[0]
    direction: str = "down"
    client_kernel: str | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one transfer. Gaps are the longest times without delivery to the application, in seconds.

    `percent_of_permitted` covers the time from a second after the rates began to their end. `worst_window` is the
    capped path's largest rate over 5 s after the drain, as a multiple of its cap; `start_excess` is what the path
    carried beyond its cap before, in bytes. `counters` are the increases of the proxy's, as nstat(8) names them.
    """

    percent_of_permitted: float
    start_gap: float
    hold_gap: float
    end_gap: float
    worst_window: float
    start_excess: float
    intact: bool
    counters: Mapping[str, int]


class Bench:
    """Hosts with Squid and an origin server, for one transfer after the other; `uploader`: the client of uploads."""

    def __init__(self, lab: Lab, origin: Origin, uploader: Client) -> None:
        self._lab = lab
        self._uploader = uploader
        self._origin = origin
        self._documents: dict[int, Document] = {}
        self._names = (f"throttle-{number}" for number in count())

    def services(self, variant: str) -> Services:
        """Services for transfers of that variant, not started yet."""
        settings = {"pacing": variant == "ours"}
        return Services(self._lab.proxy, name=next(self._names), linger="300ms", daemon=settings)

    def transfer(self, services: Services, cell: Cell, seconds: float) -> Figures:
        """One download or upload, on which the rates are for `seconds`."""
        at_once, is_up = cell.begin == "connection", cell.direction == "up"
        slow, fast = (Rate(round(cap * 1e6)) for cap in cell.caps)
        wifi, ethernet = WIFI_FIRST
        if is_up:
            services.configure((wifi, ethernet.with_rates({RateKind.CAP: None, RateKind.UPLINK_CAP: slow})))
        else:
            services.configure((wifi.with_rates({RateKind.LIMIT: fast}), ethernet.with_rates({RateKind.CAP: slow})))
        services.ask("reload")
        capped = cell.variant != "none"
        throttle = partial(self._shape, slow) if cell.variant == "ifb" else partial(_throttle, services)
        _throttle(services, on=False)
        throttle(on=capped and at_once)
        drain = _DRAIN_SECONDS[cell.direction]
        permitted = sum(cell.caps) * 1e6 * PAYLOAD_PART
        links = (ETHERNET.rate.bits_per_second + self._lab.topology.wifi.rate.bits_per_second) * PAYLOAD_PART
        meanwhile = permitted if capped else links
        size = int(links * (_BEFORE_SECONDS + _AFTER_SECONDS + 1) + meanwhile * (seconds + 1)) // 8
        with (
            PathMeter(self._lab.client, [ETHERNET.interface]) as meter,
            Sampler({"proxy": self._lab.proxy.namespace}, (), _COUNTERS_SECONDS, 0.0, sockets=False) as sampler,
        ):
            transfer, delivered_bytes = self._start_upload(size) if is_up else self._start_download(size)
            wait_until(lambda: len(services.subflows()) == 2, "two subflows", _CONNECT_SECONDS)
            with Delivery(delivered_bytes) as delivered:
                if not at_once:
                    _pass(_BEFORE_SECONDS, transfer)
                begins = time.monotonic()
                throttle(on=capped)
                began = time.monotonic()
                _pass(seconds + 1, transfer)
                ended = time.monotonic()
                throttle(on=False)
                _pass(_AFTER_SECONDS, transfer)
            result = transfer.wait(10 * (size * 8 / permitted))
            path = meter.sent(ETHERNET.interface) if is_up else meter.received(ETHERNET.interface)
        carried = delivered.between(began + 1, ended)
        return Figures(
            100 * carried * 8 / (ended - began - 1) / permitted,
            delivered.longest_gap(begins, began + 3),
            delivered.longest_gap(began + 3, ended),
            delivered.longest_gap(ended, ended + _AFTER_SECONDS),
            _worst_window(path, began + drain, ended) * MEGA / slow.bits_per_second,
            path.at(began + drain) - path.at(began) - slow.bytes_per_second * drain,
            result.intact,
            {name: value for name, value in sampler.counters["proxy"].items() if value},
        )

    def _start_download(self, size: int) -> tuple[Download, Callable[[], int]]:
        download = Download(self._lab, self._lab.client, self._document(size))
        return download, lambda: download.received

    def _start_upload(self, size: int) -> tuple[Upload, Callable[[], int]]:
        return Upload(self._lab, self._uploader, self._origin, size), self._origin.received

    def _shape(self, rate: Rate, *, on: bool) -> None:
        """What comes from the client's Ethernet address passes HTB on an IFB device, as traffic shapers do it."""
        proxy, client = self._lab.proxy, self._lab.client.address(ETHERNET, 4)
        if not on:
            proxy.run("tc", "qdisc", "del", "dev", "eth0", "ingress", check=False)
            proxy.run("ip", "link", "del", "ifb0", check=False)
            return
        proxy.run("ip", "link", "add", "ifb0", "up", "type", "ifb")
        proxy.tc(
            [
                "qdisc add dev ifb0 root handle 1: htb default 1",
                f"class add dev ifb0 parent 1: classid 1:1 htb rate {rate}",
                "qdisc add dev ifb0 parent 1:1 pfifo limit 50",
                "qdisc add dev eth0 ingress",
                f"filter add dev eth0 ingress protocol ip u32 match ip src {client}"
                " action mirred egress redirect dev ifb0",
            ]
        )

    def _document(self, size: int) -> Document:
        if size not in self._documents:
            self._documents[size] = self._origin.add(size)
        return self._documents[size]


def _throttle(services: Services, *, on: bool) -> None:
    if on:
        services.ask("resume")
    else:
        services.ask("pause", None)


@contextmanager
def bench(
    cc: str, delay: tuple[int, int], direction: str = "down", client_kernel: str | None = None
) -> Iterator[Bench]:
    """Build the hosts; `delay` is that of Ethernet and Wi-Fi, in milliseconds."""
    wifi = replace(WIFI, rate=_UPLINK_WIFI) if direction == "up" else WIFI
    with build(Topology(clients=(ClientSpec(families=(4,)),), wifi=wifi)) as lab:
        sender = lab.client if direction == "up" else lab.proxy
        parameters = {"net/ipv4/tcp_congestion_control": cc}
        uploader = lab.client
        if client_kernel is None:
            sender.sysctl(parameters)
        else:
            uploader = GuestClient(lab, client_kernel, parameters)
        delay_links(lab, delay, direction)
        start_squid(lab.proxy)
        yield Bench(lab, start_origin(lab.origin), uploader)


def delay_links(lab: Lab, delay: tuple[int, int], direction: str = "down") -> None:
    """Delay the acknowledgments of what is sent in that direction over Ethernet and Wi-Fi, by `delay` milliseconds.

    Takes netem.
    """
    for link, milliseconds in zip((ETHERNET, WIFI), delay, strict=True):
        if milliseconds:
            # In place of the token bucket, which acknowledgments do not need.
            host: Host = lab.client
            interface = link.interface
            if direction == "up":
                host, interface = lab.router, f"{lab.client.name}-{link.interface}"
            host.tc([f"qdisc replace dev {interface} root netem delay {milliseconds}ms limit 5000"])


def measure(cells: Sequence[Cell], seconds: float, repeats: int, seed: int) -> Iterator[tuple[Cell, Figures]]:
    """The figures of each cell on this kernel, `repeats` times; the cells have one congestion control and one delay.

    Cells and variants take turns in random order. Transfers share their services until the variant changes, because
    starting services takes long in the guest.
    """
    shuffle = random.Random(seed).shuffle  # noqa: S311
    variants: dict[str, list[Cell]] = {}
    for cell in cells:
        variants.setdefault(cell.variant, []).append(cell)
    order = list(variants) * repeats
    shuffle(order)
    first = cells[0]
    with bench(first.cc, first.delay, first.direction, first.client_kernel) as here:
        for variant, turns in groupby(order):
            with here.services(variant) as services:
                services.check_kernel_program()
                for _ in turns:
                    shuffle(variants[variant])
                    for cell in variants[variant]:
                        yield cell, here.transfer(services, cell, seconds)


def _pass(seconds: float, transfer: Download | Upload) -> None:
    """Wait for `seconds`, or until the transfer ends."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and transfer.running:
        time.sleep(_POLL_SECONDS)


def _worst_window(path: Curve, began: float, ended: float) -> float:
    starts = [began + 0.25 * n for n in range(int(max(ended - began - 5, 0) / 0.25) + 1)]
    return max(path.mbps(start, min(start + 5, ended)) for start in starts)


class Delivery(Background):
    """What the application receives, sampled by a thread while the `with` block runs.

    So a slow call of the daemon in the main thread is not taken for a gap.
    """

    def __init__(self, received: Callable[[], int]) -> None:
        self._received = received
        self._samples: list[tuple[float, int]] = []
        super().__init__("delivery")

    def _run(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            self._samples.append((time.monotonic(), self._received()))

    def between(self, began: float, ended: float) -> int:
        """The bytes received in that time."""
        within = [received for at, received in self._samples if began <= at <= ended]
        return within[-1] - within[0]

    def longest_gap(self, began: float, ended: float) -> float:
        """The longest time without a byte that overlaps that interval, in seconds."""
        arrivals = [at for (_, before), (at, received) in pairwise(self._samples) if received > before]
        return max((b - a for a, b in pairwise(arrivals) if b > began and a < ended), default=ended - began)


def summary(results: Sequence[tuple[Cell, Figures]]) -> list[dict[str, Any]]:
    """A row per cell: of each figure the median, what nine runs in ten reach, and the worst; and all runs.

    A download that was not intact counts.
    """
    by_cell: dict[Cell, list[Figures]] = {}
    for cell, figures in results:
        by_cell.setdefault(cell, []).append(figures)
    return [
        {
            **asdict(cell),
            **{figure: _rounded_spread([getattr(run, figure) for run in runs], figure) for figure in _COLUMNS},
            "intact": sum(run.intact for run in runs),
            "runs": [asdict(run) for run in runs],
        }
        for cell, runs in by_cell.items()
    ]


def _rounded_spread(values: Sequence[float], figure: str) -> tuple[float, ...]:
    figures = spread(values, low_is_bad=figure == _LOW_IS_BAD)
    return tuple(round(value, _COLUMNS[figure][1]) for value in figures)


def pair_text(pair: tuple[float, float]) -> str:
    """The inverse of `number_pair`."""
    return f"{pair[0]:g}+{pair[1]:g}"


def number_pair(text: str) -> tuple[float, float]:
    """`A+B` as two numbers."""
    first, _, second = text.partition("+")
    return float(first), float(second)


def delay_pair(text: str) -> tuple[int, int]:
    """`A+B` as two whole numbers."""
    first, second = number_pair(text)
    return int(first), int(second)


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    headings = "".join(f" {heading:>22}" for heading, _ in _COLUMNS.values())
    print("of each figure: median, p90, worst")
    columns = f"{'cc':6} {'delay ms':9} {'caps Mb/s':10} {'begin':12} {'variant':8} {'runs':>4}{headings}"
    print(f"{'proxy':12} {'client':12} {columns}")
    for row in rows:
        figures = "".join(f" {', '.join(map(str, row[figure])):>22}" for figure in _COLUMNS)
        print(
            f"{row['kernel']:12} {row['client_kernel'] or row['kernel']:12} {row['cc']:6}"
            f" {pair_text(row['delay']):9} {pair_text(row['caps']):10} {row['begin']:12} {row['variant']:8}"
            f" {len(row['runs']):4}{figures}"
        )


def main() -> None:
    """Print a line per cell, and the goodput of each variant as a part of the permitted one."""
    parser = command_line("goodput", __doc__)
    parser.add_argument("--quick", action="store_true", help="this kernel only")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=KERNELS)
    parser.add_argument("--cc", nargs="+", choices=CONGESTION_CONTROLS, default=CONGESTION_CONTROLS)
    parser.add_argument("--delays", nargs="+", type=delay_pair, default=DELAYS, metavar="MS+MS")
    parser.add_argument("--direction", choices=tuple(CAPS), default="down", help="default: %(default)s")
    parser.add_argument(
        "--client-kernel", choices=sorted(kernels.NAMES), help="of uploads; default: the same kernel as the proxy's"
    )
    parser.add_argument("--caps", nargs="+", type=number_pair, metavar="MBPS+MBPS")
    parser.add_argument("--begins", nargs="+", choices=BEGINS, default=BEGINS, help="when the rates begin")
    parser.add_argument("--variants", nargs="+", choices=sorted({*chain(*VARIANTS.values())}))
    parser.add_argument("--seconds", type=float, default=8.0, help="from the start to the end of the rates; default: 8")
    parser.add_argument("--repeats", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the order of transfers; default: %(default)s")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.caps = options.caps or CAPS[options.direction]
    options.variants = options.variants or VARIANTS[options.direction]
    if options.direction == "up" and any(wifi * 1e6 != _UPLINK_WIFI.bits_per_second for _, wifi in options.caps):
        parser.error(f"--caps of up: allowed: MBPS+{_UPLINK_WIFI.bits_per_second / 1e6:g}")
    options.kernels = ("native",) if options.quick else options.kernels
    if options.client_kernel and (options.direction, *options.kernels) != ("up", "native"):
        parser.error("--client-kernel: allowed: with --direction up --quick")
    if not {*options.variants} <= {*VARIANTS[options.direction]}:
        parser.error(f"--variants of {options.direction}: allowed: {', '.join(VARIANTS[options.direction])}")
    set_up_guest()
    results: list[tuple[Cell, Figures]] = []
    for kernel, cc, delay in product(options.kernels, options.cc, options.delays):
        # The sender's kernel needs the congestion control; the router, which delays, is always here.
        needs = (cc,) if options.client_kernel is None else ()
        if lacking := missing(kernel, delay, *needs):
            print(f"{kernel} {cc} {pair_text(delay)}: this kernel has no {lacking} for namespaces", file=sys.stderr)
        elif options.inside or kernel == "native":
            varied = product(options.caps, options.variants, options.begins)
            same = (options.direction, options.client_kernel)
            cells = [Cell(kernel, cc, delay, *rest, *same) for rest in varied]
            results += _measure_here(cells, options)
        else:
            results += _measure_in_guest(kernel, cc, delay)
    if options.inside:
        write_json(options.inside, [(astuple(cell), astuple(figures)) for cell, figures in results])
        return
    rows = summary(results)
    _print(rows)
    for variant in options.variants:
        parts = [row["percent_of_permitted"][0] for row in rows if row["variant"] == variant]
        if parts:
            print(f"{variant}: {median(parts):.1f} % of the permitted (median cell), {min(parts):.1f} % (lowest)")
    write_json(options.json, {"cells": rows})


def _measure_in_guest(kernel: str, cc: str, delay: tuple[int, int]) -> list[tuple[Cell, Figures]]:
    """Measure in a guest of its own, so that no more is lost when its kernel dies."""
    results = results_of_guest("goodput", kernel, "--cc", cc, "--delays", pair_text(delay))
    return [
        (Cell(kernel, cc, delay, tuple(caps), variant, begin, direction), Figures(*figures))
        for (_, _, _, caps, variant, begin, direction, _), figures in results
    ]


def _measure_here(cells: Sequence[Cell], options: argparse.Namespace) -> list[tuple[Cell, Figures]]:
    results = []
    for done, (cell, figures) in enumerate(measure(cells, options.seconds, options.repeats, options.seed), 1):
        results.append((cell, figures))
        total = len(cells) * options.repeats
        print(f"{done}/{total} {cell} {figures.percent_of_permitted:.1f} %", file=sys.stderr)
    return results


if __name__ == "__main__":
    main()
