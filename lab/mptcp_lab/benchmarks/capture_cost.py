"""What a saturating MPTCP transfer costs the sniffer, beside the seed's way to capture and beside none."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from mptcp_lab.benchmarks.measure import cpu_seconds, unshaped
from mptcp_lab.services import Services
from mptcp_lab.topology import ClientSpec, Lab, build
from mptcp_throttle.rpc import RpcClient

if TYPE_CHECKING:
    from mptcp_lab.process import Process

_PORT: Final = 8080


def _transfer(lab: Lab, seconds: float, sniffer: Process | None) -> tuple[float, float]:
    """Gb/s of the transfer, and per cent of a core that the sniffer used meanwhile."""
    began, used = time.monotonic(), 0.0 if sniffer is None else cpu_seconds(sniffer.pid)
    arguments = ("drain", str(_PORT), str(seconds), str(lab.proxy_address(4)))
    result = lab.client.run(sys.executable, "-m", "mptcp_lab.traffic", *arguments, timeout=seconds + 30)
    lasted = time.monotonic() - began
    used = 0.0 if sniffer is None else cpu_seconds(sniffer.pid) - used
    return float(result.stdout) * 8 / 1e9, 100 * used / lasted


def measure(seconds: float, repeats: int) -> dict[str, dict[str, float]]:
    """Medians of `repeats` transfers of `seconds` each: nobody captures, we capture, the seed captures."""
    results: dict[str, list[tuple[float, float]]] = {"none": [], "ours": [], "seed": []}
    captured = 0
    with build(unshaped(ClientSpec(families=(4,)))) as lab:
        pour = lab.proxy.start("pour", sys.executable, "-m", "mptcp_lab.traffic", "pour", str(_PORT))
        pour.wait_until(lambda: lab.proxy.listens(_PORT, mptcp=True), "listening")
        services = Services(lab.proxy)
        socket = services.directory / "run" / "sniffer.sock"
        for number in range(repeats):
            results["none"].append(_transfer(lab, seconds, None))
            ours = services.start_sniffer()
            ours.wait_until(socket.exists, "answering")
            results["ours"].append(_transfer(lab, seconds, ours))
            captured = RpcClient(socket).call("status")["counters"]["subflows_opened"]
            ours.stop()
            arguments = ("-m", "mptcp_lab.benchmarks.seed_sniffer", "eth0", str(_PORT))
            seed = lab.proxy.start(f"seed-{number}", sys.executable, *arguments)
            seed.wait_until(lambda seed=seed: "capturing" in seed.log.read_text(encoding="utf-8"), "capturing")  # type: ignore[misc]
            results["seed"].append(_transfer(lab, seconds, seed))
            seed.stop()
    if captured != 2:
        raise SystemExit(f"capture-cost: the sniffer saw {captured} subflows instead of 2")
    return {
        name: {"gbps": median(rate for rate, _ in runs), "cpu_percent_of_a_core": median(cpu for _, cpu in runs)}
        for name, runs in results.items()
    }


def main() -> int:
    """Print a line per way to capture."""
    parser = argparse.ArgumentParser(prog="capture-cost", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each transfer; default: %(default)g")
    parser.add_argument("--repeats", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE too")
    options = parser.parse_args()
    figures = measure(options.seconds, options.repeats)
    print(f"{'capture':8} {'Gb/s':>6} {'sniffer, % of a core':>21}")
    for name, figure in figures.items():
        print(f"{name:8} {figure['gbps']:6.2f} {figure['cpu_percent_of_a_core']:21.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
