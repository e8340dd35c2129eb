"""What each constant behind a cap is worth: goodput, gaps and excess with our value and with others.

One cell of the goodput benchmark, without delay; one constant of the daemon is changed at a time.
"""

from __future__ import annotations

import random
import sys
from dataclasses import fields
from statistics import median
from typing import Final

from mptcp_lab.benchmarks.goodput import Cell, Figures, bench, number_pair
from mptcp_lab.benchmarks.measure import command_line, write_json

_LEAF: Final = "mptcp_throttled.kernel.htb.htb:LEAF_PACKETS"
_BURST: Final = "mptcp_throttled.kernel.htb.htb:_MIN_BURST_BYTES"
_PAYLOAD: Final = "mptcp_throttled.vocabulary.kernel_plan:PAYLOAD_PART"

CHOICES: Final[dict[str, dict[str, float]]] = {
    "as it is": {},
    "leaf of 10 packets": {_LEAF: 10},
    "leaf of 100 packets": {_LEAF: 100},
    "burst of 32 kB": {_BURST: 32768},
    "burst of 1 frame": {_BURST: 1514},
    "pace 0.85 of the rate": {_PAYLOAD: 0.85},
    "pace 1.0 of the rate": {_PAYLOAD: 1.0},
    "pace 2.0 of the rate": {_PAYLOAD: 2.0},
}


def measure(cc: str, caps: tuple[float, float], seconds: float, repeats: int, seed: int) -> dict[str, list[Figures]]:
    """Every choice `repeats` times, in random order."""
    results: dict[str, list[Figures]] = {choice: [] for choice in CHOICES}
    cell = Cell("native", cc, (0, 0), caps, "ours")
    order = list(CHOICES) * repeats
    random.Random(seed).shuffle(order)  # noqa: S311
    with bench(cc, (0, 0)) as here:
        for number, choice in enumerate(order, 1):
            with here.services("ours", CHOICES[choice]) as services:
                results[choice].append(here.transfer(services, cell, seconds))
            print(f"{number}/{len(order)} {choice}", file=sys.stderr)
    return results


def main() -> None:
    """Print a line per choice."""
    parser = command_line("htb-parameters", __doc__)
    parser.add_argument("--cc", default="bbr", help="congestion control of the proxy; default: %(default)s")
    parser.add_argument("--caps", type=number_pair, default=(1.0, 40.0), metavar="MBPS+MBPS", help="default: 1+40")
    parser.add_argument("--seconds", type=float, default=7.0, help="of each cap; default: %(default)g")
    parser.add_argument("--repeats", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the order; default: %(default)s")
    options = parser.parse_args()
    results = measure(options.cc, options.caps, options.seconds, options.repeats, options.seed)
    names = [field.name for field in fields(Figures) if field.name != "counters"]
    medians = {
        choice: {name: median(float(getattr(run, name)) for run in runs) for name in names}
        for choice, runs in results.items()
    }
    print(f"{'':22} {'% permitted':>11} {'gap start':>9} {'gap end':>8} {'5 s/cap':>8} {'excess kB':>10}")
    for choice, found in medians.items():
        print(
            f"{choice:22} {found['percent_of_permitted']:11.1f} {found['start_gap']:9.3f} {found['end_gap']:8.3f}"
            f" {found['worst_window']:8.3f} {found['start_excess'] / 1e3:10.0f}"
        )
    write_json(options.json, medians)


if __name__ == "__main__":
    main()
