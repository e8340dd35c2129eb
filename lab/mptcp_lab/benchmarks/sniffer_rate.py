"""How many SYNs per second the sniffer takes without losing one. What a transfer costs it is in `capture-cost`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.benchmarks.measure import cpu_seconds, resident_bytes, unshaped
from mptcp_lab.services import Services
from mptcp_lab.topology import ClientSpec, Lab, build

if TYPE_CHECKING:
    from mptcp_throttle.rpc import Json

_PORT: Final = 8080
# Of no host: the kernel of the proxy leaves the frames alone, and who captures sees them.
_NOBODY: Final = "02:00:00:00:00:01"
_MIB: Final = 2**20


def measure(lab: Lab, rate: int, seconds: float) -> dict[str, Json]:
    """Send `rate` SYNs per second, half MP_CAPABLE and half MP_JOIN, to a sniffer that was just started."""
    services = Services(lab.proxy, name=f"throttle-{rate}")
    sniffer = services.start_sniffer()
    sniffer.wait_until((services.directory / "run" / "sniffer.sock").exists, "answering")
    arguments = ("proxy", _NOBODY, str(lab.proxy_address(4)), str(_PORT), str(rate), str(seconds))
    flood = lab.router.start(f"flood-{rate}", sys.executable, "-m", "mptcp_lab.benchmarks.syn_flood", *arguments)
    flood.wait_until(lambda: "ready" in flood.log.read_text(encoding="ascii"), "ready", 30)
    began, cpu = time.monotonic(), cpu_seconds(sniffer.pid)
    flood.wait(seconds + 30)
    lasted, cpu = time.monotonic() - began, cpu_seconds(sniffer.pid) - cpu
    status = services.ask_sniffer("status")
    resident = resident_bytes(sniffer.pid)
    sniffer.stop()
    sent = int(flood.log.read_text(encoding="ascii").split()[-1])
    return {
        "syn_per_second": round(sent / seconds),
        "lost": status["dropped"],
        "cpu_percent_of_a_core": round(100 * cpu / lasted, 1),
        "resident_mib": round(resident / _MIB, 1),
    }


def main() -> int:
    """Print a line per rate."""
    parser = argparse.ArgumentParser(prog="sniffer-rate", description=__doc__)
    rates = [20_000, 35_000, 50_000, 65_000, 80_000]
    parser.add_argument("--rates", type=int, nargs="+", default=rates, help="SYNs per second; default: 20000 to 80000")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each; default: %(default)g")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE too")
    options = parser.parse_args()
    with build(unshaped(ClientSpec(families=(4,)))) as lab:
        rows = [measure(lab, rate, options.seconds) for rate in options.rates]
    print("  ".join(f"{name:>21}" for name in rows[0]))
    for row in rows:
        print("  ".join(f"{value:21}" for value in row.values()))
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
