"""A server of the proxy: what clients reach it with, its configuration, and the program that is started.

It accepts MPTCP from clients, and speaks plain TCP to the origin server, which has all documents.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from mptcp_lab.lab_errors import LabError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mptcp_lab.host import Host
    from mptcp_lab.process import Process

PORT: Final = 8080
"""The port on which every server listens."""
SOCKS_PORT: Final = 1080
"""The port of the SOCKS proxy on a client."""
MPTCPIZE: Final = ("mptcpize", "run")


class Access(Enum):
    """How curl on a client gets a document of the origin server."""

    FORWARD = auto()
    """The server is a proxy for HTTP: it is asked for the URL of the document."""
    REVERSE = auto()
    """The server is asked as if it had the document: it knows the origin server."""
    TRANSPARENT = auto()
    """The origin server is asked for it, on PORT: what clients send there is led to the server."""
    SOCKS = auto()
    """A program on the client is a proxy for SOCKS, and speaks a protocol of its own to the server, with MPTCP."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a program runs: the `config` file that it reads, and the ADDRESS:PORT `upstream` to which it connects."""

    config: Path
    upstream: str

    @property
    def directory(self) -> Path:
        """The directory of the program's files."""
        return self.config.parent


@dataclass(frozen=True, slots=True)
class ProxyServer:
    """A program that listens on a port, v4 and v6, and connects to origin servers.

    `programs` are what has to be installed, by name or path. `client`, with `Access.SOCKS`, is the
    program that runs on each client; its upstream is the server.
    """

    name: str
    access: Access
    programs: tuple[str | Path, ...]
    command: Callable[[Site], Sequence[str | Path]]
    configuration: Callable[[Site], str]
    port: int = PORT
    client: ProxyServer | None = None

    def missing(self) -> str | None:
        """A program that is not installed; None if there is none."""
        programs = (*self.programs, *(() if self.client is None else self.client.programs))
        return next((str(program) for program in programs if not _is_installed(program)), None)

    def start(self, host: Host, upstream: str = "") -> Process:
        """Start it; returns once it listens. Raises LabError if it does not, or is not installed."""
        missing = self.missing()
        if missing is not None:
            raise LabError(f"{self.name}: {missing} is not installed; `lab/bootstrap --servers` installs it")
        site = Site(host.directory / f"{self.name}.conf", upstream)
        site.config.write_text(self.configuration(site), encoding="ascii")
        process = host.start(self.name, *self.command(site))
        mptcp = self.port != SOCKS_PORT
        process.wait_until(lambda: host.listens(self.port, mptcp=mptcp), f"listening on port {self.port}")
        return process

    def curl(self, options: Sequence[str | Path], server: str, url: str, *, mptcp: bool) -> list[str | Path]:
        """The command line of curl with these options, for a URL of the origin server.

        `server` is ADDRESS:PORT of the server. Without `mptcp`, curl connects with plain TCP; with
        `Access.SOCKS`, it does in any case.
        """
        speaks_mptcp = mptcp and self.access is not Access.SOCKS
        return [*(MPTCPIZE if speaks_mptcp else ()), "curl", *options, *self._target(server, url)]

    def _target(self, server: str, url: str) -> tuple[str, ...]:
        if self.access is Access.FORWARD:
            return "--proxy", f"http://{server}", url
        if self.access is Access.SOCKS:
            return "--proxy", f"socks5h://127.0.0.1:{SOCKS_PORT}", url
        origin, _, path = url.removeprefix("http://").partition("/")
        asked = f"{origin}:{PORT}" if self.access is Access.TRANSPARENT else server
        return (f"http://{asked}/{path}",)


def _is_installed(program: str | Path) -> bool:
    return shutil.which(program) is not None if isinstance(program, str) else program.exists()
