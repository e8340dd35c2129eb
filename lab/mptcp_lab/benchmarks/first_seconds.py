"""How long downloads take that are capped from their first moment, and a page of 30 objects over 6 connections.

Side by side: plain TCP over Wi-Fi (56 Mb/s) alone, MPTCP over Ethernet (10 Mb/s) and Wi-Fi without a cap, and the same
with Ethernet capped to 1 Mb/s: by HTB alone (the seed's method), decided by the daemon, decided in the kernel, and the
last with a provisional pace of 0.3 s. The connection begins over Ethernet, and Wi-Fi joins it. Times are from the first
SYN to the last byte, in seconds; a ratio is a time divided by the median of plain TCP over Wi-Fi of the same cell. A
world is the lab with one thing changed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from statistics import median, quantiles
from typing import Final

from mptcp_lab import oracle
from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.benchmarks.stock_kernels import CONGESTION_CONTROLS
from mptcp_lab.origin import start_origin
from mptcp_lab.process import wait_until
from mptcp_lab.scenario.kernel_choice import native_has
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.squid import PORT, start_squid
from mptcp_lab.topology import ETHERNET, WIFI, ClientSpec, Lab, Topology, build

VARIANTS: Final = ("wifi", "uncapped", "htb", "daemon", "kernel", "provisional")
SIZES: Final = ("0.1", "0.3", "1", "3", "10", "20")
"""Of documents, in MB; and `page`."""

_PAGE: Final = "page"
_PAGE_OBJECTS: Final = 30
_PAGE_BYTES: Final = (10_000, 300_000)
_PAGE_CONNECTIONS: Final = 6
_BLOCK: Final = 5
_DAEMON_SETTINGS: Final[Mapping[str, Mapping[str, object]]] = {
    "htb": {"pacing": False},
    "daemon": {"kernel_decides": "off"},
    "kernel": {"kernel_decides": "auto"},
    "provisional": {"kernel_decides": "auto"},
}
_PROVISIONAL_SECONDS: Final = 0.3


@dataclass(frozen=True, slots=True)
class World:
    """What differs from the lab as it is; None: nothing. `router_queue` is in bytes, of both access links."""

    in_order: bool = True
    metrics_saved: bool = False
    router_queue: int | None = None
    origin_cc: str | None = None
    proxy_qdisc: str = "pfifo limit 1000"
    recommended: bool = True


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
    "no-sysctls": World(recommended=False),
    "plain": World(in_order=False, metrics_saved=True, router_queue=200_000, origin_cc="bbr", recommended=False),
}
"""`plain` is what namespaces have whose builder has set nothing: all of these things at once."""

_KERNEL_DEFAULTS: Final = {"net/ipv4/tcp_wmem": "4096 16384 4194304", "net/ipv4/tcp_notsent_lowat": "4294967295"}


class Bench:
    """The hosts of one world, for one download after the other."""

    def __init__(self, lab: Lab, pages: Mapping[str, Sequence[str]]) -> None:
        self._lab = lab
        self._pages = pages
        self._names = (f"throttle-{number}" for number in count())

    def block(self, variant: str, sizes: Sequence[str], repeats: int) -> Iterator[tuple[str, float]]:
        """Fetch each size `repeats` times with the services of that variant: what was fetched, and the seconds."""
        with self._services(variant):
            for _ in range(repeats):
                for size in sizes:
                    yield size, self._fetch(variant, size)

    def _services(self, variant: str) -> AbstractContextManager[object]:
        if variant not in _DAEMON_SETTINGS:
            return nullcontext()
        wifi, ethernet = WIFI_FIRST
        if variant == "provisional":
            ethernet = replace(ethernet, provisional=_PROVISIONAL_SECONDS)
        daemon = _DAEMON_SETTINGS[variant]
        return Services(self._lab.proxy, (wifi, ethernet), name=next(self._names), daemon=daemon)

    def _fetch(self, variant: str, size: str) -> float:
        client, urls = self._lab.client, self._pages[size]
        alone = ("--tcp", "--from", str(client.address(WIFI, 4))) if variant == "wifi" else ()
        printed = client.run(
            *(sys.executable, "-m", "mptcp_lab.fetch", str(self._lab.proxy_address(4)), str(PORT), *alone),
            *("--connections", str(_PAGE_CONNECTIONS if size == _PAGE else 1), *urls),
            timeout=300,
        ).stdout
        wait_until(lambda: not oracle.listed(self._lab.proxy, PORT), "all subflows ended", 30)
        return float(printed.split()[0])


@contextmanager
def bench(world: World, cc: str, sizes: Sequence[str]) -> Iterator[Bench]:
    """Build the hosts of a world, with congestion control `cc` on the proxy."""
    clients = (ClientSpec(families=(4,)),)
    with build(Topology(clients, proxy_qdisc=world.proxy_qdisc, in_order=world.in_order)) as lab:
        lab.proxy.sysctl({"net/ipv4/tcp_congestion_control": cc, **({} if world.recommended else _KERNEL_DEFAULTS)})
        for host in (lab.proxy, lab.origin, lab.client):
            host.sysctl({"net/ipv4/tcp_no_metrics_save": str(int(not world.metrics_saved))})
        if world.router_queue is not None:
            for link in (ETHERNET, WIFI):
                shape = f"tbf rate {link.rate} burst 16384 limit {world.router_queue + 16384}"
                lab.router.tc([f"qdisc replace dev {lab.client.name}-{link.interface} root {shape}"])
        start_squid(lab.proxy)
        origin = start_origin(lab.origin)
        if world.origin_cc is not None:
            lab.origin.sysctl({"net/ipv4/tcp_congestion_control": world.origin_cc})
        objects = random.Random(1)  # noqa: S311
        lengths = {
            size: [objects.randint(*_PAGE_BYTES) for _ in range(_PAGE_OBJECTS)]
            if size == _PAGE
            else [round(float(size) * 1e6)]
            for size in sizes
        }
        base = f"http://{lab.origin_address(4)}"
        yield Bench(lab, {s: [f"{base}/{origin.add_zeros(n)}" for n in each] for s, each in lengths.items()})


Times = dict[tuple[str, str], list[float]]
"""By variant and size."""


def measure(world: World, cc: str, sizes: Sequence[str], variants: Sequence[str], runs: int, seed: int) -> Times:
    """The seconds of `runs` downloads of each size and variant, which take turns in random order."""
    times: Times = {}
    blocks = [(variant, min(_BLOCK, runs - done)) for variant in variants for done in range(0, runs, _BLOCK)]
    random.Random(seed).shuffle(blocks)  # noqa: S311
    with bench(world, cc, sizes) as here:
        for variant, repeats in blocks:
            for size, seconds in here.block(variant, sizes, repeats):
                times.setdefault((variant, size), []).append(seconds)
    return times


def _rows(world: str, cc: str, times: Times) -> Iterator[dict[str, object]]:
    for (variant, size), seconds in sorted(times.items(), key=lambda item: (_order(item[0][1]), item[0][0])):
        wifi = median(times.get(("wifi", size), seconds))
        percentiles = quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else seconds * 99
        figures = {"median": median(seconds), "p90": percentiles[89], "p99": percentiles[98], "max": max(seconds)}
        yield {
            "world": world,
            "cc": cc,
            "size": size,
            "variant": variant,
            "runs": len(seconds),
            **{name: round(figure, 3) for name, figure in figures.items()},
            **{f"{name}_ratio": round(figure / wifi, 2) for name, figure in figures.items()},
        }


def _order(size: str) -> float:
    return float("inf") if size == _PAGE else float(size)


def _print(row: Mapping[str, object]) -> None:
    print(
        f"{row['world']:13} {row['cc']:6} {row['size']:>5} {row['variant']:9} {row['runs']:4}"
        f" {row['median']:8} {row['p90']:8} {row['p99']:8} {row['max']:8}"
        f" {row['median_ratio']:7} {row['p90_ratio']:6} {row['p99_ratio']:6} {row['max_ratio']:6}",
        flush=True,
    )


def main() -> None:
    """Print a line per world, congestion control, size and variant."""
    parser = command_line("first-seconds", __doc__)
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=["lab"], help="default: lab")
    parser.add_argument("--cc", nargs="+", choices=CONGESTION_CONTROLS, default=["bbr"], help="default: bbr")
    parser.add_argument("--sizes", nargs="+", choices=(*SIZES, _PAGE), default=(*SIZES, _PAGE))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--runs", type=int, default=100, help="of each; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the order; default: %(default)s")
    options = parser.parse_args()
    print("world         cc      size variant   runs  median      p90      p99      max   ratio    p90    p99    max")
    rows: list[dict[str, object]] = []
    known = [cc for cc in options.cc if native_has(cc)]
    for cc in set(options.cc) - set(known):
        print(f"{cc}: this kernel lets no namespace choose it")
    for world in options.worlds:
        for cc in known:
            times = measure(WORLDS[world], cc, options.sizes, options.variants, options.runs, options.seed)
            for row in _rows(world, cc, times):
                _print(row)
                rows.append(row)
    write_json(options.json, {"rows": rows})


if __name__ == "__main__":
    main()
