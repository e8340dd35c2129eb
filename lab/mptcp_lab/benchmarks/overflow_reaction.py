"""How soon Ethernet carries what Wi-Fi lacks of an `overflow` of 10 Mb/s, and how soon it is back at its cap.

A download through Squid over Ethernet (10 Mb/s, capped to 1 Mb/s) and Wi-Fi. Wi-Fi falls from 56 to 3 Mb/s for 12 s,
and recovers for 12 s.

* `cap`: seconds until the daemon has raised the cap.
* `carries`: seconds until Ethernet carries 5.6 Mb/s (80 % of what Wi-Fi lacks) or more, for half a second.
* `kept`: seconds after the recovery, from which on Ethernet carries 1.5 Mb/s or less on average over each second.
* `both`: what both carry from 2 to 12 s after the fall, in Mb/s.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.download import Download
from mptcp_lab.origin import endless, start_origin
from mptcp_lab.percentiles import spread
from mptcp_lab.process import wait_until
from mptcp_lab.sampler import PathMeter
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.squid import start_squid
from mptcp_lab.topology import WIFI, Lab, Topology, build
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from mptcp_lab.curve import Curve

_OVERFLOW: Final = Rate(10_000_000)
_CAP: Final = Rate(1_000_000)
_SLOW: Final = Rate(3_000_000)
_CARRIES_MBPS: Final = 5.6
_KEPT_MBPS: Final = 1.5
_SECONDS: Final = 12.0
_STEP_SECONDS: Final = 0.1
_SETTLED_SECONDS: Final = 4.0
_PATIENCE_SECONDS: Final = 30.0


def main() -> None:
    """Print a row per figure."""
    parser = command_line("overflow-reaction", __doc__)
    parser.add_argument("--runs", type=int, default=10, help="default: %(default)s")
    options = parser.parse_args()
    wifi, ethernet = WIFI_FIRST
    rows = []
    with build(Topology()) as lab:
        start_squid(lab.proxy)
        origin = start_origin(lab.origin)
        with Services(lab.proxy, (wifi, replace(ethernet, overflow=_OVERFLOW))) as services:
            services.check_kernel_program()
            Download(lab, lab.client, endless(origin))
            wait_until(lambda: _cap(services) == _CAP.bits_per_second, "capped", _PATIENCE_SECONDS)
            time.sleep(_SETTLED_SECONDS)
            with PathMeter(lab.client, ("eth0", WIFI.interface)) as meter:
                for _ in range(options.runs):
                    rows.append(_run(lab, services, meter))
    print(f"{'':10}{'median':>8}{'p90':>8}{'worst':>8}")
    for name in rows[0]:
        figures = spread([row[name] for row in rows], low_is_bad=name == "both")
        print(f"{name:10}" + "".join(f"{value:8.2f}" for value in figures))
    write_json(options.json, rows)


def _cap(services: Services) -> int | None:
    return next((each.rate for each in services.subflows() if each.kind == "cap"), None)


def _run(lab: Lab, services: Services, meter: PathMeter) -> dict[str, float]:
    fell = _shape_wifi(lab, _SLOW)
    wait_until(lambda: (_cap(services) or 0) > _CAP.bits_per_second, "a raised cap", _SECONDS)
    raised = time.monotonic()
    time.sleep(fell + _SECONDS - raised)
    recovered = _shape_wifi(lab, WIFI.rate)
    time.sleep(_SECONDS)
    ethernet, wifi = (meter.received(interface) for interface in ("eth0", WIFI.interface))
    return {
        "cap": raised - fell,
        "carries": _first(ethernet, fell) - fell,
        "kept": _last(ethernet, recovered) - recovered,
        "both": sum(each.mbps(fell + 2, fell + _SECONDS) for each in (ethernet, wifi)),
    }


def _first(ethernet: Curve, fell: float) -> float:
    """Since when it carries what Wi-Fi lacks; the end of the run if it never does."""
    at = fell
    while at < fell + _SECONDS and ethernet.mbps(at, at + 0.5) < _CARRIES_MBPS:
        at += _STEP_SECONDS
    return at


def _last(ethernet: Curve, recovered: float) -> float:
    """Since when it keeps to its cap, until the next fall."""
    at = recovered + _SECONDS - 1
    while at > recovered and ethernet.mbps(at, at + 1) <= _KEPT_MBPS:
        at -= _STEP_SECONDS
    return at


def _shape_wifi(lab: Lab, rate: Rate) -> float:
    """Shape what the client receives over Wi-Fi; when that has been done, in monotonic seconds."""
    interface = f"{lab.client.name}-{WIFI.interface}"
    lab.router.tc([f"qdisc replace dev {interface} root tbf burst 16384 latency 50ms rate {rate}"])
    return time.monotonic()


if __name__ == "__main__":
    main()
