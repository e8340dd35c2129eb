"""How long a cap outlasts its preferred path, by the kernel's account: until the capped socket has no pace any more.

A download over Ethernet, capped, and Wi-Fi. Wi-Fi then ends: the client resets the subflow there, or the proxy's kernel
does, or the client removes its address there (REMOVE_ADDR). Times begin when the command that does it is started. ss(8)
shows when the socket is free; each call of it takes some milliseconds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.download import Download, reset_subflows
from mptcp_lab.lab_errors import LabError
from mptcp_lab.origin import Origin, endless, start_origin
from mptcp_lab.percentiles import spread
from mptcp_lab.process import wait_until
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.squid import start_squid
from mptcp_lab.throttled import paced
from mptcp_lab.topology import WIFI, Lab, Topology, build

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_SECONDS: Final = 30.0


def _reset_by_client(lab: Lab) -> None:
    lab.client.run("ss", "-K", "-t", "src", str(lab.client.address(WIFI, 4)))


def _reset_by_proxy(lab: Lab) -> None:
    lab.proxy.run("ss", "-K", "-t", "dst", str(lab.client.address(WIFI, 4)))


def _removed(lab: Lab) -> None:
    lab.client.ip(["mptcp endpoint flush"])


ENDS: Final[dict[str, Callable[[Lab], None]]] = {
    "RST of the client": _reset_by_client,
    "RST of the proxy": _reset_by_proxy,
    "REMOVE_ADDR": _removed,
}


def measure(lab: Lab, origin: Origin, end: Callable[[Lab], None]) -> float:
    """The seconds from the start of `end` until no socket is paced, for one download. Raises LabError."""
    client = lab.client
    client.ip(["mptcp endpoint flush", f"mptcp endpoint add {client.address(WIFI, 4)} dev {WIFI.interface} subflow"])
    download = Download(lab, client, endless(origin))
    try:
        wait_until(lambda: len(paced(lab.proxy)) == 1, "capped", _PATIENCE_SECONDS)
        began = time.monotonic()
        end(lab)
        while paced(lab.proxy):
            if time.monotonic() > began + _PATIENCE_SECONDS:
                raise LabError(f"not free after {_PATIENCE_SECONDS:g} s")
        return time.monotonic() - began
    finally:
        reset_subflows(client)
        download.stop()
        wait_until(lambda: not paced(lab.proxy), "no subflow left", _PATIENCE_SECONDS)


def main() -> None:
    """Print a row per kind of end."""
    parser = command_line("cap-end", __doc__)
    parser.add_argument("--runs", type=int, default=30, help="of each; default: %(default)s")
    options = parser.parse_args()
    print(f"{'end of the preferred path':30}{'median':>8}{'p90':>8}{'worst':>8}  ms")
    rows = []
    with build(Topology()) as lab:
        start_squid(lab.proxy)
        origin = start_origin(lab.origin)
        with Services(lab.proxy, WIFI_FIRST) as services:
            services.check_kernel_program()
            for name, end in ENDS.items():
                times = [1000 * measure(lab, origin, end) for _ in range(options.runs)]
                figures = spread(times)
                print(f"{name:30}" + "".join(f"{value:8.0f}" for value in figures), flush=True)
                rows.append({"end": name, "milliseconds": times, **figures._asdict()})
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
