"""What forged SYNs at the proxy port cost the sniffer, and whether it still finds real connections."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

from mptcp_lab.benchmarks.measure import (
    PORT,
    CpuShare,
    command_line,
    resident_mib,
    start_sniffer,
    start_syn_flood,
    unshaped,
    write_json,
)
from mptcp_lab.benchmarks.syn_flood import SOURCES
from mptcp_lab.oracle import listed, published
from mptcp_lab.services import Services
from mptcp_lab.topology import ClientSpec, Lab, build
from mptcp_lab.traffic import start_client, start_server
from mptcp_throttle.rpc import RpcClient

if TYPE_CHECKING:
    from mptcp_lab.process import Process
    from mptcp_throttle.rpc import Json

_PER_WAVE: Final = 10
_SETTLED_SECONDS: Final = 3.0


def _start_flood(lab: Lab, rate: int, seconds: float) -> Process:
    lab.router.ip([f"route add blackhole {SOURCES}"])
    attacker = lab.clients["attacker"]
    lab.router.run("ping", "-c1", "-W2", str(attacker.address(lab.topology.ethernet, 4)), check=False)
    router = json.loads(lab.router.run("ip", "-json", "link", "show", "attacker-eth0").stdout)[0]["address"]
    return start_syn_flood(attacker, "eth0", router, lab.proxy_address(4), rate, seconds)


def measure(rate: int, seconds: float) -> dict[str, Json]:
    """The figures of a flood of `rate` SYNs per second for `seconds`, during which real connections are opened."""
    with build(unshaped(ClientSpec("user"), ClientSpec("attacker"))) as lab:
        start_server(lab.proxy, PORT)
        services = Services(lab.proxy)
        sniffer = start_sniffer(services)
        client = RpcClient(services.sockets.sniffer, timeout=30)
        before = resident_mib(sniffer.pid)
        flood = _start_flood(lab, rate, seconds)
        share = CpuShare(sniffer.pid)
        most, waves = before, 0
        user = lab.clients["user"]
        while flood.exit_status is None:
            if share.seconds > seconds * (0.1 + 0.2 * waves) and waves < 4:
                addresses = [lab.proxy_address(family) for family in user.spec.families]
                start_client(user, addresses, PORT, mode="hold", count=_PER_WAVE, seed=waves)
                waves += 1
            most = max(most, resident_mib(sniffer.pid))
            time.sleep(0.2)
        lasted, cpu = share.seconds, share.percent()
        time.sleep(_SETTLED_SECONDS)
        kernel, table = listed(lab.proxy, PORT), published(client.call("snapshot")["connections"])
        status = client.call("status")
        sent = int(flood.log_text().split()[-1])
    return {
        "seconds": round(lasted, 1),
        "syn_per_second": round(sent / lasted),
        "dropped_percent": round(100 * status["dropped"] / sent, 3),
        "real_subflows": len(kernel),
        "real_subflows_found": len(kernel.keys() & table.keys()),
        "invented_subflows": len(table.keys() - kernel.keys()),
        "resident_mib": [round(before, 1), round(most, 1)],
        "cpu_percent_of_a_core": round(cpu, 1),
        "half_open": status["half_open"],
        "counters": status["counters"],
    }


def main() -> None:
    """Print the figures."""
    parser = command_line("flood", __doc__)
    parser.add_argument("--rate", type=int, default=50_000, help="forged SYNs per second; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=60.0, help="default: %(default)g")
    options = parser.parse_args()
    figures = measure(options.rate, options.seconds)
    for name, value in figures.items():
        print(f"{name:24} {value}")
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
