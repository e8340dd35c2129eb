"""What marking costs per packet, for 2 to 50 000 tracked subflows: the seed's rules and our packet back ends.

Each state has a host of its own. All take turns, so that a disturbance hits neighbouring figures alike.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_lab.benchmarks.datapath_host import VARIANTS
from mptcp_lab.benchmarks.measure import command_line, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

_SUBFLOWS: Final = (2, 100, 1000, 10_000, 50_000)
_WINDOW: Final = 10  # segments: TCP's initial window (RFC 6928), which later windows exceed


class Load(NamedTuple):
    """Packets of `size` bytes (IP header included), `burst` in a row to each subflow."""

    size: int
    burst: int

    def __str__(self) -> str:
        return f"{self.size} bytes, {self.burst} in a row to each subflow"


_SMALL: Final = Load(60, _WINDOW)
_COLD: Final = Load(60, 1)
_LARGE: Final = Load(1500, _WINDOW)
_LOADS: Final = {_SMALL: VARIANTS, _LARGE: VARIANTS, _COLD: ("none", "ipset")}

State = tuple[str, int]
Figures = dict[Load, dict[State, list[float]]]


class _Host:
    """A host whose subflows are marked."""

    def __init__(self, variant: str, subflows: int) -> None:
        program = (sys.executable, "-m", "mptcp_lab.benchmarks.datapath_host", variant, str(subflows))
        self._process = subprocess.Popen(
            ["unshare", "--net", *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> _Host:
        self._process.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        # It ends at the end of its stdin.
        self._process.__exit__(None, None, None)

    def wait_ready(self) -> None:
        self._read()

    def packets_per_second(self, seconds: float, load: Load) -> float:
        print(seconds, *load, file=self._process.stdin, flush=True)
        return float(self._read())

    def _read(self) -> str:
        line = "" if self._process.stdout is None else self._process.stdout.readline()
        if not line:
            raise SystemExit(f"datapath: a host ended with status {self._process.wait()}")
        return line


def measure(variants: Sequence[str], subflows: Sequence[int], seconds: float, repeats: int) -> Figures:
    """By load, the packets per second of processor time, turn by turn."""
    states: list[State] = [(variant, count) for variant in variants for count in subflows]
    found: Figures = {load: {state: [] for state in states if state[0] in of} for load, of in _LOADS.items()}
    with ExitStack() as stack:
        hosts = {}
        for state in states:
            hosts[state] = stack.enter_context(_Host(*state))
            hosts[state].wait_ready()
        for turn in range(1 + repeats):
            for load, figures in found.items():
                for state, rates in figures.items():
                    rate = hosts[state].packets_per_second(seconds, load)
                    if turn:  # the first turn warms up
                        rates.append(rate)
    return found


def _ratios(subflows: Sequence[int], figures: dict[State, list[float]]) -> dict[str, float]:
    """Medians of the ratios within a turn."""
    variants = _variants(figures)
    least, most = min(subflows), max(subflows)
    pairs: dict[str, tuple[State, State]] = {
        f"{variant}, {most} / {least} subflows": ((variant, most), (variant, least))
        for variant in ("ipset", "none")
        if variant in variants
    }
    for count in subflows:
        for variant in variants:
            if variant != "ipset" and "ipset" in variants:
                pairs[f"ipset / {variant}, {count} subflows"] = ("ipset", count), (variant, count)
    return {
        name: median(a / b for a, b in zip(figures[one], figures[other], strict=True))
        for name, (one, other) in pairs.items()
    }


def _variants(figures: dict[State, list[float]]) -> list[str]:
    return list(dict.fromkeys(variant for variant, _ in figures))


def _show(load: Load, subflows: Sequence[int], figures: dict[State, list[float]]) -> None:
    variants = _variants(figures)
    unit = "Gb/s" if load is _LARGE else "packets/s"
    print(f"\n{load}: {unit} per core\n{'subflows':>9}" + "".join(f"{variant:>10}" for variant in variants))
    for count in subflows:
        rates = [median(figures[variant, count]) for variant in variants]
        shown = [f"{rate * load.size * 8 / 1e9:10.2f}" if load is _LARGE else f"{rate:10.0f}" for rate in rates]
        print(f"{count:9}" + "".join(shown))
    for name, ratio in _ratios(subflows, figures).items():
        print(f"  {name:36} {ratio:8.3f}")


def main() -> None:
    """Print a table per load, and the ratios."""
    parser = command_line("datapath", __doc__)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, help="default: all")
    parser.add_argument("--subflows", type=int, nargs="+", default=_SUBFLOWS, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=0.05, help="of each measurement; default: %(default)g")
    parser.add_argument("--repeats", type=int, default=21, help="default: %(default)s")
    options = parser.parse_args()
    found = measure(options.variants, options.subflows, options.seconds, options.repeats)
    for load, figures in found.items():
        _show(load, options.subflows, figures)
    rows = [
        {**load._asdict(), "variant": variant, "subflows": count, "packets_per_second": rates}
        for load, figures in found.items()
        for (variant, count), rates in figures.items()
    ]
    ratios = {str(load): _ratios(options.subflows, figures) for load, figures in found.items()}
    write_json(options.json, {"figures": rows, "ratios": ratios})


if __name__ == "__main__":
    main()
