"""How long downloads take that are capped from their first moment: one, six at once, a page of 30 objects over six.

Side by side: plain TCP over Wi-Fi (56 Mb/s) alone, MPTCP over Ethernet (10 Mb/s) and Wi-Fi without a cap, and the same
with Ethernet capped to 1 Mb/s. The methods of the cap: HTB alone, as in the thesis (`seed`); paces without prevention
of discards, and with it; steering; and paces with `provisional: 300ms`. The connection begins over Ethernet, and Wi-Fi
joins it. Times are from the first SYN to the last byte, in seconds. A ratio is a time divided by the median of plain
TCP over Wi-Fi in the same cell.

`late`: Wi-Fi joins a download of 10 MB after 0.8 s, so that the cap begins in mid-transfer. There a ratio is a time
divided by the ideal one, with all of Ethernet until Wi-Fi has joined, and then all of Wi-Fi and the cap.

`video`: ten chunks of 2 MB, one every 4 s, each over a connection of its own. Its time is that of the slowest chunk,
from when it was due. Its ratio is to 4 s: up to 1, no chunk is late.

`ethernet kB` is what the client's Ethernet has received, with headers: the expensive bytes (median and largest).

`discarded` counts packets that the client's MPTCP discarded as beyond its window. MPTCP sends them again, one at a
time, after a timeout each.

A world is the lab with one thing changed.

With `--fleet`, each variant with services is also measured while they share budgets by a server, which is healthy, or
not (`fleet_states`): `steered-slow`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count, product
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from mptcp_lab import oracle
from mptcp_lab.benchmarks.fleet_states import ALONE, STATES, in_state, sharing, with_budgets
from mptcp_lab.benchmarks.goodput import PAYLOAD_PART, delay_links, delay_pair, pair_text
from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.benchmarks.stock_kernels import CONGESTION_CONTROLS, KERNELS, missing, results_of_guest, set_up_guest
from mptcp_lab.lab_errors import LabError
from mptcp_lab.origin import start_origin
from mptcp_lab.percentiles import percentile
from mptcp_lab.process import wait_until
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.squid import PORT, start_squid
from mptcp_lab.topology import ETHERNET, WIFI, ClientSpec, Lab, Topology, build
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate

VARIANTS: Final = ("wifi", "uncapped", "htb", "discarding", "paced", "steered", "provisional")
SIZES: Final = ("0.1", "0.3", "1", "3", "10", "20", "6x0.3", "6x3")
"""A number is the MB of a document; `6x3`: six of 3 MB at once, over a connection each. See above for the others."""

_PAGE: Final = "page"
_LATE: Final = "late"
_LATE_BYTES: Final = 10_000_000
_LATE_SECONDS: Final = 0.8
_VIDEO: Final = "video"
_CHUNKS: Final = 10
_CHUNK_MEGABYTES: Final = 2
_CHUNK_SECONDS: Final = 4.0
_POLL_SECONDS: Final = 0.01
_MEASURED: Final = (*SIZES, _PAGE, _LATE)
_PAGE_OBJECTS: Final = 30
_PAGE_BYTES: Final = (10_000, 300_000)
_CONNECTIONS: Final = 6
"""Of a page, and of what is fetched at once."""
_BLOCK: Final = 5
_DAEMON_SETTINGS: Final[Mapping[str, Mapping[str, object]]] = {
    "htb": {"pacing": False},
    "discarding": {"steering": False, "prevent_discards": False},
    "paced": {"steering": False},
    "steered": {},
    "provisional": {"steering": False},
}
_PROVISIONAL_SECONDS: Final = 0.3


_QDISCS: Final = ("pfifo limit 1000", "noqueue", "pfifo_fast")


@dataclass(frozen=True, slots=True)
class World:
    """What differs from the lab as it is; None: nothing. `router_queue`, of both access links, and `notsent_lowat`, the
    proxy's net.ipv4.tcp_notsent_lowat, are in bytes."""

    in_order: bool = True
    metrics_saved: bool = False
    wifi: Rate = WIFI.rate
    router_queue: int | None = None
    origin_cc: str | None = None
    proxy_qdisc: str = "pfifo limit 1000"
    recommended: bool = True
    notsent_lowat: int | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """The congestion control and the qdisc that not every kernel has."""
        return tuple(need for need in (self.origin_cc, self.proxy_qdisc) if need not in (None, *_QDISCS))


WORLDS: Final[Mapping[str, World]] = {
    "lab": World(),
    "veth-order": World(in_order=False),
    "metrics-saved": World(metrics_saved=True),
    "queue-30kB": World(router_queue=30_000),
    "queue-200kB": World(router_queue=200_000),
    "queue-1500kB": World(router_queue=1_500_000),
    "origin-bbr": World(origin_cc="bbr"),
    "origin-cubic": World(origin_cc="cubic"),
    "noqueue": World(proxy_qdisc="noqueue"),
    "pfifo_fast": World(proxy_qdisc="pfifo_fast"),
    "fq_codel": World(proxy_qdisc="fq_codel"),
    "no-sysctls": World(recommended=False),
    "notsent-lowat-4kB": World(notsent_lowat=4096),
    "wifi-3": World(wifi=Rate(3_000_000)),
    "wifi-8": World(wifi=Rate(8_000_000)),
    "wifi-20": World(wifi=Rate(20_000_000)),
    "plain": World(in_order=False, metrics_saved=True, router_queue=200_000, origin_cc="bbr", recommended=False),
}
"""`plain` has all differences at once: it is what namespaces have if nothing is set in them."""

_KERNEL_DEFAULTS: Final = {"net/ipv4/tcp_wmem": "4096 16384 4194304", "net/ipv4/tcp_notsent_lowat": "4294967295"}


class Fetched(NamedTuple):
    """A download: its seconds, its bytes over Ethernet, its shortest possible seconds where these are not measured, and
    the packets discarded."""

    seconds: float
    ethernet_bytes: int
    ideal: float | None = None
    discarded: int = 0


class Bench:
    """The hosts of one world, for one download after the other."""

    def __init__(self, lab: Lab, pages: Mapping[str, Sequence[str]]) -> None:
        self._lab = lab
        self._pages = pages
        self._names = (f"throttle-{number}" for number in count())
        self._fetches = count()

    def block(self, variant: str, sizes: Sequence[str], repeats: int) -> Iterator[tuple[str, Fetched]]:
        """Fetch each size `repeats` times with the services of that variant: what was fetched, and its times."""
        with self._services(variant):
            for _ in range(repeats):
                for size in sizes:
                    if size != _LATE:
                        yield size, self._fetch(variant, size)
                    elif variant != "wifi":
                        yield size, self._fetch_late()

    @contextmanager
    def _services(self, variant: str) -> Iterator[None]:
        name, _, state = variant.partition("-")
        if name not in _DAEMON_SETTINGS:
            yield
            return
        wifi, ethernet = WIFI_FIRST
        if name == "provisional":
            ethernet = replace(ethernet, provisional=_PROVISIONAL_SECONDS)
        networks = with_budgets((wifi, ethernet), state or ALONE)
        services = Services(self._lab.proxy, networks, name=next(self._names), daemon=_DAEMON_SETTINGS[name])
        with sharing(services, state or ALONE) as server, services:
            services.check_kernel_program()
            with in_state(server):
                yield

    def _program(self, size: str, *options: str) -> tuple[str, ...]:
        proxy = (str(self._lab.proxy_address(4)), str(PORT))
        urls = self._pages[size]
        at_once = ("--connections", str(min(_CONNECTIONS, len(urls))))
        how = ("--period", str(_CHUNK_SECONDS)) if size == _VIDEO else at_once
        return (sys.executable, "-m", "mptcp_lab.fetch", *proxy, *options, *how, *urls)

    def _fetch(self, variant: str, size: str) -> Fetched:
        client = self._lab.client
        alone = ("--tcp", "--from", str(client.address(WIFI, 4))) if variant == "wifi" else ()
        ideal = _CHUNK_SECONDS if size == _VIDEO else None
        before = self._counters()
        seconds, _ = client.run(*self._program(size, *alone), timeout=300).stdout.split()
        return self._ended(float(seconds), ideal, before)

    def _fetch_late(self) -> Fetched:
        client = self._lab.client
        client.ip(["mptcp endpoint flush"])
        before = self._counters()
        output = client.directory / f"late-{next(self._fetches)}"
        process = client.start("late", *self._program(_LATE), output=output)
        process.wait_until(lambda: bool(self._listed()), "connected", poll=_POLL_SECONDS)
        time.sleep(_LATE_SECONDS)
        client.ip([f"mptcp endpoint add {client.address(WIFI, 4)} dev {WIFI.interface} subflow"])
        joined = time.monotonic()
        if process.wait(300) != 0:
            raise LabError(f"fetch: {process.log_text()}")
        seconds, began = map(float, output.read_text(encoding="ascii").split())
        wifi = self._lab.topology.wifi.rate
        return self._ended(seconds, ideal_seconds(_LATE_BYTES, joined - began, wifi), before)

    def _counters(self) -> tuple[int, int]:
        """The client's: bytes received over Ethernet, packets that MPTCP has discarded."""
        # net/mptcp/protocol.c, mptcp_data_queue_ofo
        discarded = self._lab.client.counter("MPTcpExtNoDSSInWindow")
        return self._lab.client.received_bytes(ETHERNET.interface), discarded

    def _ended(self, seconds: float, ideal: float | None, before: tuple[int, int]) -> Fetched:
        wait_until(lambda: not self._listed(), "all subflows ended", 30)
        ethernet_bytes, discarded = (after - earlier for after, earlier in zip(self._counters(), before, strict=True))
        return Fetched(seconds, ethernet_bytes, ideal, discarded)

    def _listed(self) -> Mapping[oracle.Ends, object]:
        return oracle.listed(self._lab.proxy, PORT)


def ideal_seconds(size: int, joined: float, wifi: Rate) -> float:
    """Of a download of `size` bytes over Ethernet, until Wi-Fi has joined, and over Wi-Fi and the cap from then on."""
    _, capped = WIFI_FIRST
    before, after = (
        sum(rate.bytes_per_second for rate in rates if rate is not None) * PAYLOAD_PART
        for rates in ((ETHERNET.rate,), (wifi, capped.rates[RateKind.CAP]))
    )
    return joined + (size - joined * before) / after


@contextmanager
def bench(world: World, cc: str, delay: tuple[int, int], sizes: Sequence[str]) -> Iterator[Bench]:
    """Build the hosts of a world, with congestion control `cc` on the proxy, and delays of Ethernet and Wi-Fi in ms."""
    clients = (ClientSpec(families=(4,)),)
    wifi = replace(WIFI, rate=world.wifi)
    with build(Topology(clients, wifi=wifi, proxy_qdisc=world.proxy_qdisc, in_order=world.in_order)) as lab:
        lab.proxy.sysctl({"net/ipv4/tcp_congestion_control": cc, **({} if world.recommended else _KERNEL_DEFAULTS)})
        if world.notsent_lowat is not None:
            lab.proxy.sysctl({"net/ipv4/tcp_notsent_lowat": str(world.notsent_lowat)})
        for host in (lab.proxy, lab.origin, lab.client):
            host.sysctl({"net/ipv4/tcp_no_metrics_save": str(int(not world.metrics_saved))})
        if world.router_queue is not None:
            for link in (ETHERNET, wifi):
                shape = f"tbf rate {link.rate} burst 16384 limit {world.router_queue + 16384}"
                lab.router.tc([f"qdisc replace dev {lab.client.name}-{link.interface} root {shape}"])
        delay_links(lab, delay)
        start_squid(lab.proxy)
        origin = start_origin(lab.origin)
        if world.origin_cc is not None:
            lab.origin.sysctl({"net/ipv4/tcp_congestion_control": world.origin_cc})
        base = f"http://{lab.origin_address(4)}"
        yield Bench(lab, {size: [f"{base}/{origin.add_zeros(n)}" for n in _lengths(size)] for size in sizes})


def _lengths(size: str) -> list[int]:
    if size == _VIDEO:
        return [_CHUNK_MEGABYTES * 10**6] * _CHUNKS
    if size == _PAGE:
        objects = random.Random(1)  # noqa: S311
        return [objects.randint(*_PAGE_BYTES) for _ in range(_PAGE_OBJECTS)]
    count, _, megabytes = size.rpartition("x")
    return [_LATE_BYTES if size == _LATE else round(float(megabytes) * 1e6)] * int(count or 1)


Times = dict[tuple[str, str], list[Fetched]]
"""What was fetched, by variant and size."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Where downloads are measured: `world` is the name of one, `delay` in ms of Ethernet and Wi-Fi."""

    kernel: str
    world: str
    cc: str
    delay: tuple[int, int]

    def measure(self, sizes: Sequence[str], variants: Sequence[str], runs: int, seed: int) -> Times:
        """The times of `runs` downloads of each size and variant, which take turns in random order."""
        times: Times = {}
        blocks = [(variant, min(_BLOCK, runs - done)) for variant in variants for done in range(0, runs, _BLOCK)]
        random.Random(seed).shuffle(blocks)  # noqa: S311
        with bench(WORLDS[self.world], self.cc, self.delay, sizes) as here:
            for variant, repeats in blocks:
                for size, fetched in here.block(variant, sizes, repeats):
                    times.setdefault((variant, size), []).append(fetched)
        return times


def rows(cell: Cell, times: Times) -> Iterator[dict[str, Any]]:
    """A row per size and variant; `times` is what its figures are made of."""
    order = (*_MEASURED, _VIDEO)
    for (variant, size), fetched in sorted(times.items(), key=lambda item: (order.index(item[0][1]), item[0][0])):
        wifi = median(each.seconds for each in times.get(("wifi", size), fetched))
        seconds = [each.seconds for each in fetched]
        ratios = [each.seconds / (each.ideal or wifi) for each in fetched]
        yield {
            **asdict(cell),
            "size": size,
            "variant": variant,
            "runs": len(fetched),
            **{name: round(value, 3) for name, value in _spread(seconds).items()},
            **{f"{name}_ratio": round(value, 2) for name, value in _spread(ratios).items()},
            "ethernet_bytes": _spread([each.ethernet_bytes for each in fetched]),
            "discarded": sum(each.discarded for each in fetched),
            "times": fetched,
        }


def _spread(values: Sequence[float]) -> dict[str, float]:
    percents = {"p90": 90, "p99": 99, "max": 100}
    return {"median": median(values)} | {name: percentile(values, percent) for name, percent in percents.items()}


def _kilobytes(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{row['ethernet_bytes'][name] / 1000:.1f}" for name in ("median", "max"))


def _print(row: Mapping[str, Any]) -> None:
    print(
        f"{row['kernel']:11} {row['world']:13} {row['cc']:6} {pair_text(row['delay']):6}"
        f" {row['size']:>5} {row['variant']:19} {row['runs']:4}"
        f" {row['median']:8} {row['p90']:8} {row['p99']:8} {row['max']:8}"
        f" {row['median_ratio']:7} {row['p90_ratio']:6} {row['p99_ratio']:6} {row['max_ratio']:6}"
        f" {_kilobytes(row):>15} {row['discarded']:9}",
        flush=True,
    )


def main() -> None:
    """Print a line per kernel, world, congestion control, delay, size and variant."""
    parser = command_line("first-seconds", __doc__)
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=["native"], help="default: native")
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=["lab"], help="default: lab")
    parser.add_argument("--cc", nargs="+", choices=CONGESTION_CONTROLS, default=["bbr"], help="default: bbr")
    parser.add_argument("--delays", nargs="+", type=delay_pair, default=[(0, 0)], metavar="MS+MS", help="default: 0+0")
    parser.add_argument(
        "--sizes", nargs="+", choices=(*_MEASURED, _VIDEO), default=_MEASURED, help="default: all but video"
    )
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    fleet_help = "measure also while budgets are shared by a server in this state; default: none"
    parser.add_argument("--fleet", nargs="+", choices=STATES[1:], default=[], help=fleet_help)
    parser.add_argument("--runs", type=int, default=100, help="of each; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the order; default: %(default)s")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        print(
            "kernel      world         cc     delay   size variant             runs"
            "   median      p90      p99      max   ratio    p90    p99    max     ethernet kB discarded"
        )
    with_services = [variant for variant in options.variants if variant in _DAEMON_SETTINGS]
    shared = [f"{variant}-{state}" for variant in with_services for state in options.fleet]
    printed: list[dict[str, Any]] = []
    for cell in (Cell(*each) for each in product(options.kernels, options.worlds, options.cc, options.delays)):
        if lacking := missing(cell.kernel, cell.delay, cell.cc, *WORLDS[cell.world].needs):
            names = f"{cell.kernel} {cell.world} {cell.cc} {pair_text(cell.delay)}"
            print(f"{names}: this kernel has no {lacking} for namespaces", file=sys.stderr)
            continue
        if options.inside or cell.kernel == "native":
            set_up_guest(recommended=WORLDS[cell.world].recommended)
            times = cell.measure(options.sizes, [*options.variants, *shared], options.runs, options.seed)
        else:
            times = _measured_in_guest(cell)
        if options.inside:
            write_json(options.inside, [(*key, fetched) for key, fetched in times.items()])
            return
        for row in rows(cell, times):
            _print(row)
            printed.append(row)
    write_json(options.json, {"rows": printed})


def _measured_in_guest(cell: Cell) -> Times:
    """The times of a cell in a guest of its own; none if its kernel dies."""
    narrowed = ("--worlds", cell.world, "--cc", cell.cc, "--delays", pair_text(cell.delay))
    results = results_of_guest("first_seconds", cell.kernel, *narrowed)
    return {(variant, size): [Fetched(*each) for each in fetched] for variant, size, fetched in results}


if __name__ == "__main__":
    main()
