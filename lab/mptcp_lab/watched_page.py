"""The page of mptcp-throttle on this machine's own loopback, for whichever daemon of the lab runs."""

from __future__ import annotations

import errno
import os
import socket
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from mptcp_lab.process import start_process
from mptcp_throttle.config.schema import Sockets
from mptcp_throttle.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HOST: Final = "127.0.0.1"


class Watch:
    """`mptcp-throttle-web` with a directory of its own, whose daemon's socket is a link to that of the lab's daemon."""

    def __init__(self, link: Path, address: str) -> None:
        self._link = link
        self.address = address

    def follow(self, daemon: Path) -> None:
        """Show the daemon with this socket."""
        new = self._link.with_suffix(".new")
        new.unlink(missing_ok=True)
        new.symlink_to(daemon)
        new.replace(self._link)


def write_config(directory: Path, web: Mapping[str, object]) -> Path:
    """The configuration of a page with this section `web`; its files are in `directory`.

    The service reads the whole configuration. What concerns the daemon is that of the daemon that it asks.
    """
    (directory / "networks.d").mkdir(parents=True, exist_ok=True)
    network = {"name": "any", "subnets": ["192.0.2.0/24"], "preference": 1}
    (directory / "networks.d/any.yaml").write_text(yaml.safe_dump(network), encoding="utf-8")
    config = {
        "proxy": {"interface": "lo", "ports": [8080]},
        "web": dict(web),
        "run_directory": str(directory.absolute() / "run"),
        "state_directory": str(directory.absolute()),
        "socket_group": None,
    }
    path = directory.absolute() / "mptcp-throttle.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


@contextmanager
def watching(directory: Path, port: int) -> Iterator[Watch]:
    """The page is served on `port` of 127.0.0.1 while the block runs; its files are in `directory`.

    Raises UserError if it is no port, or is taken.
    """
    if not 0 < port < 65536:
        raise UserError(f"--watch {port}: is no port; allowed: 1 to 65535")
    try:
        socket.create_server((_HOST, port)).close()
    except OSError as error:
        raise UserError(f"--watch {port}: {os.strerror(error.errno or errno.EIO)}") from error
    file = write_config(directory, {"listen": f"{_HOST}:{port}"})
    log = directory / "mptcp-throttle-web.log"
    log.unlink(missing_ok=True)
    link = Sockets.below(directory / "run").daemon
    link.parent.mkdir(parents=True, exist_ok=True)
    program = Path(sys.executable).parent / "mptcp-throttle-web"
    page = start_process("mptcp-throttle-web", [program, "--config", file], log)
    try:
        page.wait_until(lambda: "the page is on" in page.log_text(), "serving the page")
        yield Watch(link, f"http://{_HOST}:{port}/")
    finally:
        page.stop()
        link.unlink(missing_ok=True)
