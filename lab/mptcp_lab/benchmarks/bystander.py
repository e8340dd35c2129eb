"""What one client's cap costs another client that is not capped: throughput and round-trip time.

Both use the same Squid at the same time. A plain TCP client, the bystander, downloads over its Ethernet (10 Mb/s). An
MPTCP client downloads or uploads, and its Ethernet is capped while our services run. For downloads the proxy's
interface then has HTB, and its cgroup our program; for uploads our program sees what leaves through the interface.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.download import Download
from mptcp_lab.origin import start_origin
from mptcp_lab.process import wait_until
from mptcp_lab.sampler import Sampler
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.squid import start_squid
from mptcp_lab.topology import ETHERNET, WIFI, ClientSpec, Lab, Topology, build
from mptcp_lab.upload import Upload
from mptcp_throttle.model import RateKind

if TYPE_CHECKING:
    from mptcp_lab.origin import Document, Origin

_SETTLE_SECONDS: Final = 3.0
_SAMPLE_SECONDS: Final = 0.05
_UPLINK_CAPPED: Final = WIFI_FIRST[1].with_rates(
    {RateKind.CAP: None, RateKind.UPLINK_CAP: WIFI_FIRST[1].rates[RateKind.CAP]}
)
_NETWORKS: Final = {"down": WIFI_FIRST, "up": (WIFI_FIRST[0], _UPLINK_CAPPED)}


@dataclass(frozen=True, slots=True)
class Figures:
    """The bystander's socket at the proxy: acknowledged bits per second, and the mean smoothed RTT in seconds."""

    throughput: float
    rtt: float


def measure(seconds: float, repeats: int, direction: str) -> dict[str, list[Figures]]:
    """Without and with our services in turn, `repeats` times."""
    results: dict[str, list[Figures]] = {"without": [], "with": []}
    clients = (ClientSpec("ue", families=(4,)), ClientSpec("other", families=(4,), wifi=None))
    with build(Topology(clients=clients)) as lab:
        start_squid(lab.proxy)
        origin = start_origin(lab.origin)
        links = ETHERNET.rate.bytes_per_second + WIFI.rate.bytes_per_second
        document = origin.add(int(links * 2 * (seconds + _SETTLE_SECONDS)))
        for number in range(repeats):
            services = Services(lab.proxy, _NETWORKS[direction], name=f"throttle-{number}")
            for way, running in (("without", None), ("with", services)):
                results[way].append(_run(lab, origin, document, seconds, running, direction))
    return results


def _run(
    lab: Lab, origin: Origin, document: Document, seconds: float, services: Services | None, direction: str
) -> Figures:
    capped, bystander = lab.clients.values()
    with ExitStack() as stack:
        if services is not None:
            stack.enter_context(services)
        stack.callback(Download(lab, bystander, document, mptcp=False).stop)
        is_up = direction == "up"
        transfer = Upload(lab, capped, origin, document.size) if is_up else Download(lab, capped, document)
        stack.callback(transfer.stop)
        if services is not None:
            wait_until(lambda: any(s.kind or s.uplink_kind for s in services.subflows()), "capped")
        time.sleep(_SETTLE_SECONDS)
        with Sampler({"proxy": lab.proxy.namespace}, (), _SAMPLE_SECONDS, time.monotonic()) as sampler:
            time.sleep(seconds)
    address = str(bystander.address(ETHERNET, 4))
    samples = [sample for sample in sampler.subflows if sample.socket.remote == address]
    first, last = samples[0], samples[-1]
    carried = (last.socket.acked - first.socket.acked) * 8
    return Figures(carried / (last.at - first.at), fmean(sample.socket.rtt for sample in samples))


def _ratio(results: dict[str, list[Figures]], name: str) -> float:
    with_us, without = (median(getattr(figures, name) for figures in results[way]) for way in ("with", "without"))
    return float(with_us / without)


def main() -> None:
    """Print the medians and the ratios."""
    parser = command_line("bystander", __doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement; default: %(default)g")
    parser.add_argument("--direction", choices=tuple(_NETWORKS), default="down", help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="default: %(default)s")
    options = parser.parse_args()
    results = measure(options.seconds, options.repeats, options.direction)
    print(f"{'':8} {'Mb/s':>7} {'RTT ms':>7}")
    for way, runs in results.items():
        throughput, rtt = median(run.throughput for run in runs), median(run.rtt for run in runs)
        print(f"{way:8} {throughput / 1e6:7.3f} {rtt * 1e3:7.2f}")
    ratios = {name: _ratio(results, name) for name in ("throughput", "rtt")}
    print(f"{'ratio':8} {ratios['throughput']:7.3f} {ratios['rtt']:7.3f}")
    runs_by_way = {way: [asdict(run) for run in runs] for way, runs in results.items()}
    write_json(options.json, {"runs": runs_by_way, "ratios": ratios})


if __name__ == "__main__":
    main()
