"""What a saturating MPTCP transfer costs the sniffer, beside the seed's capture, a busy loop, and no capture.

The busy loop takes a core and captures nothing: the control for the seed's capture, which takes a core too. For each
value of `net.ipv4.tcp_notsent_lowat` all variants take turns in random order; a ratio is the median of the ratios to
`none` within a turn. `idle` is the processor time of this machine that nobody used: a transfer that leaves some is
limited by waiting, not by processing.
"""

from __future__ import annotations

import os
import random
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from mptcp_lab.benchmarks.measure import PORT, CpuShare, command_line, start_sniffer, unshaped, write_json
from mptcp_lab.lab_errors import LabError
from mptcp_lab.services import Services
from mptcp_lab.topology import ClientSpec, Lab, build
from mptcp_lab.traffic import drain, start_pour

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mptcp_lab.process import Process

_VARIANTS: Final = ("none", "ours", "seed", "loop")
_LOWATS: Final = (16384, 2**32 - 1)
"""Bytes: systemd/sysctl.d/mptcp-throttle.conf, and the kernel's default, which limits nothing."""

_WARM_UP_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one transfer; `capture` and `idle` are per cent of one core and of all."""

    gbps: float
    capture: float
    idle: float


def _idle_seconds() -> float:
    """Of all processors since the machine's start (proc_stat(5))."""
    return int(Path("/proc/stat").read_text(encoding="ascii").split()[4]) / os.sysconf("SC_CLK_TCK")


def _start(variant: str, services: Services, number: int) -> Process | None:
    """Start what runs beside a transfer, until it captures."""
    if variant == "none":
        return None
    if variant == "ours":
        return start_sniffer(services)
    loop = ("-c", "print('capturing', flush=True)\nwhile True: pass")
    seed = ("-m", "mptcp_lab.benchmarks.seed_sniffer", "eth0", str(PORT))
    process = services.proxy.start(f"{variant}-{number}", sys.executable, *(seed if variant == "seed" else loop))
    process.wait_until(lambda: "capturing" in process.log_text(), "capturing")
    return process


def _transfer(lab: Lab, services: Services, variant: str, number: int, seconds: float) -> Figures:
    """Raises LabError if the sniffer did not see both subflows."""
    with ExitStack() as stack:
        process = _start(variant, services, number)
        if process is not None:
            stack.callback(process.stop)
        share, idle = CpuShare(os.getpid() if process is None else process.pid), _idle_seconds()
        rate = drain(lab, PORT, seconds)
        idle = _idle_seconds() - idle
        capture = 0.0 if process is None else share.percent()
        if variant == "ours" and (seen := services.ask_sniffer("status")["counters"]["subflows_opened"]) != 2:
            raise LabError(f"the sniffer saw {seen} subflows instead of 2")
    return Figures(rate * 8 / 1e9, capture, 100 * idle / share.seconds / (os.cpu_count() or 1))


def measure(lowats: Sequence[int], seconds: float, repeats: int, seed: int) -> dict[int, dict[str, list[Figures]]]:
    """`repeats` transfers of `seconds` each, by `tcp_notsent_lowat` and variant."""
    shuffle = random.Random(seed).shuffle  # noqa: S311
    results: dict[int, dict[str, list[Figures]]] = {lowat: {variant: [] for variant in _VARIANTS} for lowat in lowats}
    with build(unshaped(ClientSpec(families=(4,)))) as lab:
        start_pour(lab.proxy, PORT)
        services = Services(lab.proxy)
        drain(lab, PORT, _WARM_UP_SECONDS)
        for number in range(repeats):
            turn = [(lowat, variant) for lowat in lowats for variant in _VARIANTS]
            shuffle(turn)
            for lowat, variant in turn:
                lab.proxy.sysctl({"net/ipv4/tcp_notsent_lowat": str(lowat)})
                name = number * len(turn) + turn.index((lowat, variant))
                results[lowat][variant].append(_transfer(lab, services, variant, name, seconds))
    return results


def _print(found: dict[int, dict[str, list[Figures]]]) -> None:
    print("notsent_lowat beside   Gb/s lowest highest ratio  its % idle %")
    for lowat, variants in found.items():
        for variant, runs in variants.items():
            rates = [run.gbps for run in runs]
            ratio = median(rate / none.gbps for rate, none in zip(rates, variants["none"], strict=True))
            capture, idle = median(run.capture for run in runs), median(run.idle for run in runs)
            print(
                f"{lowat:13} {variant:6} {median(rates):6.2f} {min(rates):6.2f} {max(rates):7.2f} {ratio:5.2f}"
                f" {capture:6.2f} {idle:6.1f}"
            )


def main() -> None:
    """Print a line per variant, for each value of the kernel parameter."""
    parser = command_line("capture-cost", __doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each transfer; default: %(default)g")
    parser.add_argument("--repeats", type=int, default=7, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the order; default: %(default)s")
    lowats_help = "of tcp_notsent_lowat; default: %(default)s"
    parser.add_argument("--lowats", type=int, nargs="+", default=_LOWATS, metavar="BYTES", help=lowats_help)
    options = parser.parse_args()
    found = measure(options.lowats, options.seconds, options.repeats, options.seed)
    _print(found)
    write_json(
        options.json,
        {lowat: {name: [asdict(run) for run in runs] for name, runs in by.items()} for lowat, by in found.items()},
    )


if __name__ == "__main__":
    main()
