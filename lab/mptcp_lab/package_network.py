"""The network around a host on which packaging/ tests the Debian package: client, router and origin server.

    python -m mptcp_lab.package_network

prints the network namespace of the proxy, in which there is only the interface eth0. Then it answers each line of
standard input with one line, until its end:

    start PORT      the client begins a download without end, through the proxy's port; answers `started`
    rates SECONDS   `ETHERNET WIFI`: received in the next seconds, Mb/s
    gap             the longest time, in seconds, in which nothing was delivered since `start` or the last `gap`
    abort           end the download; answers `aborted`
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from mptcp_lab.download import Download, reset_subflows
from mptcp_lab.lab_errors import LabError
from mptcp_lab.origin import endless, start_origin
from mptcp_lab.process import wait_until
from mptcp_lab.sampler import PathMeter
from mptcp_lab.topology import ETHERNET, WIFI, ClientSpec, Lab, Topology, build

if TYPE_CHECKING:
    from mptcp_lab.origin import Origin

_POLL_SECONDS: Final = 0.005


class _Gaps(threading.Thread):
    """Measures the times in which a download delivers nothing, until `stop()`."""

    def __init__(self, download: Download) -> None:
        super().__init__(daemon=True)
        self._download = download
        self._stopping = threading.Event()
        self._longest = 0.0

    def run(self) -> None:
        received, since = self._download.received, time.monotonic()
        while not self._stopping.wait(_POLL_SECONDS):
            now, seen = time.monotonic(), self._download.received
            self._longest = max(self._longest, now - since)
            if seen != received:
                received, since = seen, now

    def take_longest(self) -> float:
        """The longest one since the last call, in seconds."""
        longest, self._longest = self._longest, 0.0
        return longest

    def stop(self) -> None:
        self._stopping.set()
        self.join()


class _Requests:
    """Answers to what standard input asks for."""

    def __init__(self, lab: Lab, origin: Origin) -> None:
        self._lab = lab
        self._origin = origin
        self._download: Download | None = None
        self._gaps: _Gaps | None = None
        self._port = 0

    def answer(self, request: str) -> str:
        match request.split():
            case ["start", port]:
                return self._start(int(port))
            case ["rates", seconds]:
                return self._rates(float(seconds))
            case ["gap"]:
                return self._gap()
            case ["abort"]:
                return self._abort()
        raise LabError(f"{request!r}: allowed: start PORT, rates SECONDS, gap, abort")

    def _start(self, port: int) -> str:
        self._port = port
        download = Download(self._lab, self._lab.client, endless(self._origin), port=port)
        self._download = download
        wait_until(lambda: bool(download.received), "delivered anything")
        self._gaps = _Gaps(download)
        self._gaps.start()
        return "started"

    def _rates(self, seconds: float) -> str:
        with PathMeter(self._lab.client, (ETHERNET.interface, WIFI.interface)) as meter:
            began = time.monotonic()
            end = began + seconds
            wait_until(lambda: bool(meter.interfaces) and meter.interfaces[-1].at >= end, "sampled", seconds + 30)
            rates = (meter.received(link.interface).mbps(began, began + seconds) for link in (ETHERNET, WIFI))
            return " ".join(f"{rate:.2f}" for rate in rates)

    def _gap(self) -> str:
        if self._gaps is None:
            raise LabError("gap: there is no download; start one first")
        return f"{self._gaps.take_longest():.3f}"

    def _abort(self) -> str:
        reset_subflows(self._lab.client, self._port)
        if self._gaps is not None:
            self._gaps.stop()
            self._gaps = None
        if self._download is not None:
            self._download.stop()
            self._download = None
        return "aborted"


def main() -> int:
    """Serve until standard input ends; 1 after a request that failed."""
    try:
        with build(Topology(clients=(ClientSpec(families=(4,)),))) as lab:
            requests = _Requests(lab, start_origin(lab.origin))
            print(lab.proxy.namespace, flush=True)
            for line in sys.stdin:
                print(requests.answer(line), flush=True)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
