"""How many SYNs per second the sniffer processes without losing one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mptcp_lab.benchmarks.measure import (
    CpuShare,
    command_line,
    resident_mib,
    start_sniffer,
    start_syn_flood,
    unshaped,
    write_json,
)
from mptcp_lab.services import Services
from mptcp_lab.topology import ClientSpec, Lab, build

if TYPE_CHECKING:
    from mptcp_throttle.rpc import Json

# No host has this address: the proxy's kernel ignores the frames, but the capture sees them.
_ABSENT: Final = "02:00:00:00:00:01"


def measure(lab: Lab, rate: int, seconds: float) -> dict[str, Json]:
    """Send `rate` SYNs per second, half MP_CAPABLE and half MP_JOIN, to a new sniffer."""
    services = Services(lab.proxy, name=f"throttle-{rate}")
    sniffer = start_sniffer(services)
    flood = start_syn_flood(lab.router, "proxy", _ABSENT, lab.proxy_address(4), rate, seconds)
    share = CpuShare(sniffer.pid)
    flood.wait(seconds + 30)
    cpu = share.percent()
    status = services.ask_sniffer("status")
    resident = resident_mib(sniffer.pid)
    sniffer.stop()
    sent = int(flood.log_text().split()[-1])
    return {
        "syn_per_second": round(sent / seconds),
        "lost": status["dropped"],
        "cpu_percent_of_a_core": round(cpu, 1),
        "resident_mib": round(resident, 1),
    }


def main() -> None:
    """Print a line per rate."""
    parser = command_line("sniffer-rate", __doc__)
    rates = [20_000, 35_000, 50_000, 65_000, 80_000]
    parser.add_argument("--rates", type=int, nargs="+", default=rates, help="SYNs per second; default: 20000 to 80000")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each; default: %(default)g")
    options = parser.parse_args()
    with build(unshaped(ClientSpec(families=(4,)))) as lab:
        rows = [measure(lab, rate, options.seconds) for rate in options.rates]
    print("  ".join(f"{name:>21}" for name in rows[0]))
    for row in rows:
        print("  ".join(f"{value:21}" for value in row.values()))
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
