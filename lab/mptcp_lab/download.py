"""Downloads by curl through the proxy, in the background."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mptcp_lab.scenario.plan import in_url
from mptcp_lab.squid import PORT, SQUID

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mptcp_lab.origin import Document
    from mptcp_lab.proxy_server import ProxyServer
    from mptcp_lab.topology import Client, Family, Lab
    from mptcp_throttle.units import Rate

_serial: Final = itertools.count()


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """The result of a download.

    `size` is in bytes, `seconds` from curl's start of the request to the last byte. `exit_status` is curl's, minus the
    number of the signal that ended it. `intact`: the whole document arrived, unchanged. `local_port` is the client's
    port of the first subflow, 0 if there was none.
    """

    size: int
    seconds: float
    exit_status: int
    intact: bool
    local_port: int

    @property
    def goodput(self) -> float:
        """Document bits per second."""
        return self.size * 8 / self.seconds if self.seconds else 0.0


def reset_subflows(client: Client, port: int = PORT) -> None:
    """Reset all subflows of a client to this port of the proxy.

    Ending its programs alone would leave them established for a minute: the kernel keeps them for data not yet
    acknowledged.
    """
    client.run("ss", "-K", "-t", "dport", "=", f":{port}")


class Download:
    """A running download of `document` by `client`, which connects over its `interface`; see `wait`."""

    def __init__(
        self,
        lab: Lab,
        client: Client,
        document: Document,
        *,
        mptcp: bool = True,
        family: Family = 4,
        rate_limit: Rate | None = None,
        interface: str | None = None,
        port: int = PORT,
        server: ProxyServer = SQUID,
    ) -> None:
        name = f"curl-{next(_serial)}"
        self.document = document
        self._file = client.directory / f"{name}.bin"
        self._figures = client.directory / f"{name}.json"
        proxy, origin = in_url(lab.proxy_address(family)), in_url(lab.origin_address(family))
        options = [
            *("--silent", "--show-error", "--fail", "--write-out", "%{json}"),
            *(() if rate_limit is None else ("--limit-rate", str(rate_limit.bytes_per_second))),
            *(() if interface is None else ("--interface", interface)),
            *("--output", self._file),
        ]
        command = server.curl(options, f"{proxy}:{port}", f"http://{origin}/{document.name}", mptcp=mptcp)
        self._process = client.start(name, *command, output=self._figures)

    @property
    def received(self) -> int:
        """Document bytes that have arrived so far."""
        try:
            return self._file.stat().st_size
        except FileNotFoundError:
            return 0

    @property
    def running(self) -> bool:
        """Whether curl still runs."""
        return self._process.exit_status is None

    def suspended(self) -> AbstractContextManager[None]:
        """Inside the block the client reads nothing."""
        return self._process.suspended()

    def wait(self, timeout: float = 120.0) -> DownloadResult:
        """Wait up to `timeout` seconds for the end. Raises LabError if it does not come."""
        return self._result(self._process.wait(timeout))

    def stop(self) -> DownloadResult:
        """End the download; the result says what arrived so far."""
        return self._result(self._process.stop())

    def _result(self, status: int) -> DownloadResult:
        text = self._figures.read_text(encoding="utf-8")
        figures = json.loads(text) if text else {}  # a signal ends curl before it writes them
        size, intact = self.received, False
        if size == self.document.size:
            with self._file.open("rb") as file:
                intact = hashlib.file_digest(file, "sha256").hexdigest() == self.document.sha256
        self._file.unlink(missing_ok=True)
        return DownloadResult(size, figures.get("time_total", 0.0), status, intact, int(figures.get("local_port", 0)))
