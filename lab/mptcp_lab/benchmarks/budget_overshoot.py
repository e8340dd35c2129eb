"""How much a client uses beyond a stage of its budget, while it downloads as fast as its access network carries.

A download over Ethernet and Wi-Fi (56 Mb/s), Wi-Fi being preferred. Ethernet has a budget per client, which ends during
the download; then its rate is 64 kb/s. The overshoot is what the proxy's sockets have carried for the client beyond the
amount, by the formula of budgets. It is taken 1 s after the daemon has said that the budget is used. Side by side:
counted in the kernel; by the daemon alone, whose maps of allowances the kernel refuses; and with `pacing: false`
(`unpaced`).

Cases: `downloads`, `--downloads` at once. `short`: 20 per second of 100 kB each. `joining`: connections over Wi-Fi join
over Ethernet in the last second. `mixed`: a download without MPTCP, with 8 Mb/s, beside the others; what it carries
after the stage does not count. `added`: the same amount is added at about the time when the budget is used. `killed`:
the daemon is killed at about that time, and started at once.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mptcp_lab import oracle
from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.download import Download, reset_subflows
from mptcp_lab.fault_plan import Fault, Faults
from mptcp_lab.origin import Origin, endless, start_origin
from mptcp_lab.percentiles import spread
from mptcp_lab.process import wait_until
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.squid import PORT, start_squid
from mptcp_lab.topology import ETHERNET, WIFI, Lab, Topology, build
from mptcp_lab.traffic import program
from mptcp_throttle.model import Budget, Counting, Every, Per, RateKind, Stage
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

WAYS: Final = ("kernel", "daemon", "unpaced")
CASES: Final = ("downloads", "short", "joining", "mixed", "added", "killed")

_STAGE: Final = Stage(1.0, {RateKind.CAP: Rate(64_000)})
_RATES: Final = ("10mbit", "100mbit", "400mbit")
_LEAST_BYTES: Final = 4_000_000
_LAST_SECONDS: Final = 1.0
_AFTER_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 60.0
_SHORT_BYTES: Final = 100_000
_SHORT_PER_SECOND: Final = 20
_JOINING: Final = 10
_PLAIN_RATE: Final = Rate(8_000_000)
_ENDPOINT: Final = 9
"""The identifier of an MPTCP endpoint that no other has."""


def _use(services: Services, address: str) -> Any:  # noqa: ANN401
    budgets = services.ask("budgets")["budgets"]
    nothing = {"used": 0, "used_without_mptcp": 0, "stages_reached": 0}
    return next((each for each in budgets if each["client"] == address), nothing)


@contextmanager
def _downloading(lab: Lab, origin: Origin, case: str, downloads: int) -> Iterator[None]:
    """The client downloads until the end of the block."""
    client, document = lab.client, endless(origin)
    with ExitStack() as stack:
        if case == "short":
            url = f"http://{lab.origin_address(4)}/{origin.add(_SHORT_BYTES).name}"
            arguments = ("download", PORT, _SHORT_PER_SECOND, _PATIENCE_SECONDS, lab.proxy_address(4), url)
            stack.callback(client.start("short", *program(*arguments)).stop)
        else:
            for _ in range(downloads):
                stack.callback(Download(lab, client, document).stop)
        if case == "mixed":
            stack.callback(Download(lab, client, document, mptcp=False, rate_limit=_PLAIN_RATE).stop)
        for _ in range(_JOINING if case == "joining" else 0):
            stack.callback(Download(lab, client, document, interface=WIFI.interface).stop)
        stack.callback(reset_subflows, client)
        yield


@contextmanager
def _crossing(lab: Lab, services: Services, case: str, address: str, amount: int) -> Iterator[None]:
    """What a case does in the last second, or when the amount is used."""
    endpoint = ("ip", "mptcp", "endpoint")
    if case == "joining":
        lab.client.run(*endpoint, "add", address, "dev", ETHERNET.interface, "id", str(_ENDPOINT), "subflow")
    elif case in {"added", "killed"}:
        time.sleep(random.uniform(0, 1.5 * _LAST_SECONDS))  # noqa: S311
        if case == "added":
            services.cli("budget", "add", address, f"{amount // 1000}kB")
            wait_until(lambda: not _use(services, address)["added"], "what was added used", _PATIENCE_SECONDS)
        elif services.daemon is not None:
            services.daemon.kill()
            services.start_daemon()
            services.wait_ready()
    try:
        yield
    finally:
        if case == "joining":
            lab.client.run(*endpoint, "delete", "id", str(_ENDPOINT))


def overshoot(lab: Lab, origin: Origin, services: Services, amount: int, downloads: int, case: str) -> int:
    """Bytes beyond the amount. Raises LabError if the budget is not used up."""
    last = min(amount // 2, round(_LAST_SECONDS * lab.topology.ethernet.rate.bytes_per_second))
    address = str(lab.client.address(lab.topology.ethernet, 4))
    services.cli("budget", "reset", "ethernet")
    try:
        with _downloading(lab, origin, case, downloads):
            wait_until(lambda: _use(services, address)["used"] > amount - last, "the last second", _PATIENCE_SECONDS)
            with _crossing(lab, services, case, address, amount):
                wait_until(lambda: _use(services, address)["stages_reached"] == 1, "the budget used", _PATIENCE_SECONDS)
                reached = _use(services, address)
                time.sleep(_AFTER_SECONDS)
                after, key = _use(services, address), "used_without_mptcp"
                # Nothing slows TCP without MPTCP.
                beyond: int = after["used"] - amount - (after[key] - reached[key])
                return beyond
    finally:
        wait_until(lambda: not oracle.listed(lab.proxy, PORT), "all subflows ended", _PATIENCE_SECONDS)


@contextmanager
def _services(lab: Lab, name: str, budget: Budget, cap: Rate | None, way: str) -> Iterator[Services]:
    wifi, ethernet = WIFI_FIRST
    networks = wifi, replace(ethernet.with_rates({RateKind.CAP: cap}), budgets=(budget,))
    daemon = {"wait_for_clock": False, "pacing": way != "unpaced"}
    services = Services(lab.proxy, networks, name=name, daemon=daemon)
    faults = None
    if way == "daemon":
        faults = Faults(Path(services.directory) / "faults")
        faults.plan(Fault("EPERM", "bpf object load"))
    try:
        services.start_sniffer()
        services.start_daemon(faults)
        services.wait_ready()
        services.check_kernel_program()
        yield services
    finally:
        services.stop()


def main() -> None:
    """Print a row for each rate and way."""
    parser = command_line("budget-overshoot", __doc__)
    parser.add_argument("--rates", type=Rate.parse, nargs="+", default=list(map(Rate.parse, _RATES)))
    parser.add_argument("--cap", type=Rate.parse, help="of Ethernet until the budget is used; default: none")
    parser.add_argument("--limit", action="store_true", help="the stage has a limit in place of a cap")
    parser.add_argument("--downloads", type=int, default=1, help="at once; default: %(default)s")
    parser.add_argument("--case", choices=CASES, default=CASES[0], help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=2.0, help="that the amount lasts; default: %(default)g")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS[:2], help="default: kernel daemon")
    parser.add_argument("--runs", type=int, default=10, help="of each; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the order; default: %(default)s")
    options = parser.parse_args()
    if options.case == "killed" and "daemon" in options.ways:
        parser.error("--case killed: a daemon without maps of allowances is not started again; allowed: other --ways")
    stage = Stage(1.0, {RateKind.LIMIT: Rate(64_000)}) if options.limit else _STAGE
    names = (f"throttle-{number}" for number in count())
    figures: dict[str, dict[str, list[int]]] = {}
    print(f"{'rate':>10} {'counted by':10} {'median':>10} {'p90':>10} {'worst':>10} bytes")
    for rate in options.rates:
        amount = max(_LEAST_BYTES, round(options.seconds * (options.cap or rate).bytes_per_second)) // 1000 * 1000
        budget = Budget(amount, Per.CLIENT, Counting.BOTH, Every.DAY, 0, None, (stage,))
        of_rate = figures[str(rate)] = {way: [] for way in options.ways}
        with build(Topology(ethernet=replace(ETHERNET, rate=rate))) as lab:
            start_squid(lab.proxy)
            origin = start_origin(lab.origin)
            ways = list(options.ways)
            random.Random(options.seed).shuffle(ways)  # noqa: S311
            for way in ways:
                with _services(lab, next(names), budget, options.cap, way) as services:
                    for _ in range(options.runs):
                        of_rate[way].append(overshoot(lab, origin, services, amount, options.downloads, options.case))
        for way, values in of_rate.items():
            print(f"{rate!s:>10} {way:10} " + " ".join(f"{value:10.0f}" for value in spread(values)), flush=True)
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
