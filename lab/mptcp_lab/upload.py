"""Uploads by curl through the proxy to the origin server, in the background."""

from __future__ import annotations

import filecmp
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mptcp_lab.origin import write_random
from mptcp_lab.scenario.plan import in_url
from mptcp_lab.squid import PORT, SQUID

if TYPE_CHECKING:
    from pathlib import Path

    from mptcp_lab.origin import Origin
    from mptcp_lab.proxy_server import ProxyServer
    from mptcp_lab.topology import Client, Family, Lab

_serial: Final = itertools.count()


@dataclass(frozen=True, slots=True)
class UploadResult:
    """The result of an upload.

    `seconds` are from curl's start of the request until the origin server has answered. `exit_status` is curl's, minus
    the number of the signal that ended it. `intact`: the origin server has the whole document, unchanged.
    """

    seconds: float
    exit_status: int
    intact: bool


class Upload:
    """A running upload of `size` random bytes by `client`; see `wait`."""

    def __init__(
        self,
        lab: Lab,
        client: Client,
        origin: Origin,
        size: int,
        *,
        family: Family = 4,
        server: ProxyServer = SQUID,
    ) -> None:
        name = f"upload-{next(_serial)}"
        self._sent, self._stored = client.directory / f"{name}.bin", origin.uploads / name
        self._figures = client.directory / f"{name}.json"
        write_random(self._sent, size)
        proxy, url = in_url(lab.proxy_address(family)), f"http://{in_url(lab.origin_address(family))}/uploads/{name}"
        options: list[str | Path] = [
            *("--silent", "--show-error", "--fail", "--write-out", "%{json}"),
            # Without the header, for whose answer curl would wait a second.
            *("--header", "Expect:", "--upload-file", self._sent),
        ]
        command = server.curl(options, f"{proxy}:{PORT}", url, mptcp=True)
        self._process = client.start(name, *command, output=self._figures)

    @property
    def running(self) -> bool:
        """Whether curl still runs."""
        return self._process.exit_status is None

    def wait(self, timeout: float = 120.0) -> UploadResult:
        """Wait up to `timeout` seconds for the end. Raises LabError if it does not come."""
        return self._result(self._process.wait(timeout))

    def stop(self) -> UploadResult:
        """End the upload."""
        return self._result(self._process.stop())

    def _result(self, status: int) -> UploadResult:
        text = self._figures.read_text(encoding="utf-8")
        figures = json.loads(text) if text else {}  # a signal ends curl before it writes them
        intact = self._stored.exists() and filecmp.cmp(self._sent, self._stored, shallow=False)
        for file in (self._sent, self._stored):
            file.unlink(missing_ok=True)
        return UploadResult(figures.get("time_total", 0.0), status, intact)
