"""Who may use the sockets of running services: root and the members of `socket_group` alone."""

from __future__ import annotations

import grp
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from polling import eventually
from proxy_world import EXECUTABLES

from mptcp_lab.benchmarks.measure import cpu_seconds
from mptcp_lab.services import Services
from mptcp_lab.topology import Topology, build

if TYPE_CHECKING:
    from mptcp_lab.process import Process

NOBODY: Final = "65534"
# Both are part of every Debian, and neither is related to the other.
GROUP: Final = grp.getgrnam("games")
OTHER_GROUP: Final = grp.getgrnam("mail")

COMMANDS: Final = (
    ("status", "--json"),
    ("connections",),
    ("plan",),
    ("set-rate", "ethernet", "2mbit"),
    ("reset-rate", "ethernet"),
)

# The CLI asks the daemon before it asks the sniffer: this asks either socket.
ASK: Final = """\
import pathlib, sys
from mptcp_throttle.rpc import RpcClient
from mptcp_throttle.service import run
sys.exit(run(lambda: RpcClient(pathlib.Path(sys.argv[1])).call("status")))
"""


# As many readers that wait as the sniffer lets wait, from one user.
WAIT: Final = """\
import pathlib, sys, threading
from mptcp_throttle.rpc import RpcClient
def wait():
    client = RpcClient(pathlib.Path(sys.argv[1]), timeout=10, keep=True)
    position = client.call("status")
    while True:
        client.call("changes", position["epoch"], position["revision"], 5.0)
for _ in range(16):
    threading.Thread(target=wait).start()
print("waiting", flush=True)
"""


class Shared(Services):
    """Services whose sockets a group may use, started with the umask of our units."""

    def _start(self, name: str) -> Process:
        self.config.write_text(self.config.read_text().replace("group: root", f"group: {GROUP.gr_name}"))
        command = (self._executables / name, "--config", self.config)
        return self.proxy.start(name, "sh", "-c", 'umask 0077; exec "$@"', "sh", *command)

    def cli_as(self, groups: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.as_nobody(groups, EXECUTABLES / "mptcp-throttle", "--config", self.config, *arguments)

    def ask_as(self, groups: str, socket: Path) -> subprocess.CompletedProcess[str]:
        return self.as_nobody(groups, EXECUTABLES / "python", "-c", ASK, socket)

    def wait_as(self, groups: str) -> Process:
        """16 readers of the sniffer's table, who wait for changes again and again."""
        program = (EXECUTABLES / "python", "-c", WAIT, self.sockets.sniffer)
        return self.proxy.start("readers", *user_in(groups), *program)

    def as_nobody(self, groups: str, *argv: object) -> subprocess.CompletedProcess[str]:
        """The outcome of a command of an unprivileged user, in `groups` or, if that is empty, in none."""
        return self.proxy.run(*user_in(groups), *map(str, argv), check=False)


def user_in(groups: str) -> tuple[str, ...]:
    """The beginning of the command line of an unprivileged user, in `groups` or, if that is empty, in none."""
    supplementary = ("--groups", groups) if groups else ("--clear-groups",)
    return ("setpriv", "--reuid", NOBODY, "--regid", NOBODY, *supplementary)


@pytest.fixture(scope="module")
def services() -> Iterator[Shared]:
    with build(Topology()) as lab, Shared(lab.proxy) as running:
        yield running


def test_sockets_serve_group_members_and_refuse_others(services: Shared) -> None:
    sockets = (services.sockets.daemon, services.sockets.sniffer)
    for socket in sockets:
        directory = socket.parent.stat()
        assert (stat.S_IMODE(directory.st_mode), directory.st_gid) == (0o2750, GROUP.gr_gid)
    for mode in (0o2750, 0o2755):
        # With 2755 it is the sockets' own mode that keeps others out.
        for socket in sockets:
            socket.parent.chmod(mode)
        for groups in ("", str(OTHER_GROUP.gr_gid)):
            refusals = [(services.ask_as(groups, socket), socket) for socket in sockets]
            if (mode, groups) == (0o2750, ""):
                refusals += [(services.cli_as(groups, *command), services.sockets.daemon) for command in COMMANDS]
            for refused, socket in refusals:
                line = f"{socket}: permission denied; its group may use it\n"
                assert (refused.returncode, refused.stdout, refused.stderr) == (os.EX_NOPERM, "", line)
    for socket in sockets:
        socket.parent.chmod(0o2750)
    for command in COMMANDS:
        served = services.cli_as(str(GROUP.gr_gid), *command)
        assert (served.returncode, served.stderr) == (os.EX_OK, "")
        assert '"capture": null' not in served.stdout
    assert services.ask_as(str(GROUP.gr_gid), services.sockets.sniffer).returncode == os.EX_OK


def test_daemon_waits_although_group_members_take_all_waiters(services: Shared) -> None:
    assert services.daemon is not None
    daemon = services.daemon.pid
    readers = services.wait_as(str(GROUP.gr_gid))
    readers.wait_until(lambda: "waiting" in readers.log_text(), "waiting")
    used, began = cpu_seconds(daemon), time.monotonic()
    eventually(lambda: time.monotonic() - began > 3, "three seconds")
    assert cpu_seconds(daemon) - used < 0.1 * (time.monotonic() - began)
    assert readers.exit_status is None
    readers.stop()


def test_unknown_socket_group_is_refused_before_anything_is_made(services: Shared) -> None:
    elsewhere = services.directory / "elsewhere"
    text = services.config.read_text().replace(f"group: {GROUP.gr_name}", "group: no-such-group")
    config = services.directory / "unknown-group.yaml"
    config.write_text(text.replace(str(services.directory / "run"), str(elsewhere)))
    for name in ("mptcp-sniffer", "mptcp-throttled"):
        refused = services.proxy.run(EXECUTABLES / name, "--config", config, check=False)
        assert refused.returncode == os.EX_CONFIG
        assert len(refused.stderr.splitlines()) == 1
        assert "socket_group: 'no-such-group': no such group" in refused.stderr
    assert not elsewhere.exists()
