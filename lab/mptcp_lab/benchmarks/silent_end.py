"""For how long nothing arrives when Wi-Fi carries nothing any more and no host says so.

A download over Ethernet (10 Mb/s) and Wi-Fi (56 Mb/s) through Squid. After 6 MB the client drops all packets of its
Wi-Fi. The gap is the longest time without a byte of the document in the next 3 s. Side by side: without a cap, and with
Ethernet capped to 1 Mb/s, so that it is held back.
"""

from __future__ import annotations

import random
import time
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import TYPE_CHECKING, Final

from mptcp_lab import oracle
from mptcp_lab.benchmarks.goodput import Delivery
from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.download import Download, reset_subflows
from mptcp_lab.dropped_packets import dropped
from mptcp_lab.lab_errors import LabError
from mptcp_lab.origin import Origin, endless, start_origin
from mptcp_lab.percentiles import spread
from mptcp_lab.process import wait_until
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.squid import PORT, start_squid
from mptcp_lab.throttled import held
from mptcp_lab.topology import WIFI, Lab, Topology, build

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIANTS: Final = ("uncapped", "held back")

_BEFORE_BYTES: Final = 6_000_000
_SECONDS: Final = 3.0
_PATIENCE_SECONDS: Final = 30.0
_BLOCK: Final = 5


def gap(lab: Lab, origin: Origin, *, is_capped: bool) -> float:
    """The longest time without a byte, in seconds, for one download. Raises LabError if the cap does not come."""
    download = Download(lab, lab.client, endless(origin))
    try:
        if is_capped:
            wait_until(lambda: bool(held(lab.proxy, [lab.client])), "held back", _PATIENCE_SECONDS)
        wait_until(lambda: download.received > _BEFORE_BYTES, "in progress", _PATIENCE_SECONDS)
        with (
            Delivery(lambda: download.received) as delivery,
            dropped(lab.client, "INPUT", "-i", WIFI.interface),
            dropped(lab.client, "OUTPUT", "-o", WIFI.interface),
        ):
            began = time.monotonic()
            time.sleep(_SECONDS)
            if not download.running:
                raise LabError("the download has ended")
        return delivery.longest_gap(began, began + _SECONDS)
    finally:
        reset_subflows(lab.client)
        download.stop()
        wait_until(lambda: not oracle.listed(lab.proxy, PORT), "all subflows ended", _PATIENCE_SECONDS)


def main() -> None:
    """Print a row per variant."""
    parser = command_line("silent-end", __doc__)
    parser.add_argument("--runs", type=int, default=50, help="of each; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the order; default: %(default)s")
    options = parser.parse_args()
    blocks = [(name, min(_BLOCK, options.runs - done)) for name in VARIANTS for done in range(0, options.runs, _BLOCK)]
    random.Random(options.seed).shuffle(blocks)  # noqa: S311
    gaps: dict[str, list[float]] = {name: [] for name in VARIANTS}
    names = (f"throttle-{number}" for number in count())
    with build(Topology()) as lab:
        start_squid(lab.proxy)
        origin = start_origin(lab.origin)
        for variant, repeats in blocks:
            is_capped = variant != "uncapped"
            with _services(lab, next(names)) if is_capped else nullcontext():
                gaps[variant] += [gap(lab, origin, is_capped=is_capped) for _ in range(repeats)]
    print(f"{'gap, s':12}{'median':>8}{'p90':>8}{'worst':>8}")
    rows = []
    for variant, seconds in gaps.items():
        figures = spread(seconds)
        print(f"{variant:12}" + "".join(f"{value:8.2f}" for value in figures))
        rows.append({"variant": variant, "seconds": seconds, **figures._asdict()})
    write_json(options.json, rows)


@contextmanager
def _services(lab: Lab, name: str) -> Iterator[None]:
    with Services(lab.proxy, WIFI_FIRST, name=name) as services:
        services.check_kernel_program()
        yield


if __name__ == "__main__":
    main()
