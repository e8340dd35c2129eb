"""One daemon or clean-up at a time in a network namespace, whatever its configuration, files and mounts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from proxy_world import EXECUTABLES, Hosts, ProxyWorld, unique

from mptcp_lab.services import Services

if TYPE_CHECKING:
    from mptcp_lab.host import Host

THROTTLED: Final = EXECUTABLES / "mptcp-throttled"
IN_CONTAINER: Final = ("unshare", "--mount-proc", "--pid", "--fork", "--kill-child")
WITHOUT_RIGHTS: Final = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set", "-all")

SQUATTER: Final = """
import contextlib, itertools, socket, time
from pathlib import Path
from mptcp_throttle.errors import UserError
from mptcp_throttled.lifecycle.namespace_lock import namespace_lock
try:
    with namespace_lock(Path("/squatter")):
        print("has the lock", flush=True)
except UserError as error:
    print(f"refused: {error}", flush=True)
names = {}
for number in itertools.count():
    sockets = [line.split() for line in Path("/proc/self/net/raw").read_text().splitlines()[1:]]
    for inode in ("0", *(fields[9] for fields in sockets)):
        if inode not in names:
            names[inode] = socket.socket(socket.AF_UNIX)
            with contextlib.suppress(OSError):
                names[inode].bind(f"\\0mptcp-throttled {inode} 1 /squatter")
    time.sleep(0.001)
"""

# Each of two threads has a socket of its own, as a process would.
RACE: Final = """
import threading
from pathlib import Path
from mptcp_throttle.errors import UserError
from mptcp_throttled.lifecycle.namespace_lock import namespace_lock

def start(name, together, done, held):
    together.wait(30)
    try:
        with namespace_lock(Path(name)):
            held.append(name)
            done.wait(30)
    except UserError:
        done.wait(30)

counts = []
for _ in range(30):
    shared = threading.Barrier(2), threading.Barrier(2), []
    threads = [threading.Thread(target=start, args=(name, *shared)) for name in ("/a", "/b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts.append(len(shared[2]))
print(counts)
"""


def refusal(owner: Services) -> tuple[int, str]:
    assert owner.daemon is not None
    line = f"mptcp-throttled is running already in this network namespace: process {owner.daemon.pid}, {owner.config}\n"
    return os.EX_TEMPFAIL, line


def run_daemon(host: Host, config: Path, *arguments: str, prefix: tuple[str, ...] = ()) -> tuple[int, str]:
    result = host.run(*prefix, THROTTLED, "--config", config, *arguments, check=False)
    return result.returncode, result.stderr


def start_answering(services: Services) -> None:
    daemon = services.start_daemon()
    daemon.wait_until(lambda: services.answers(services.sockets.daemon), "answering", 15)


@pytest.fixture
def second(world: ProxyWorld) -> Iterator[Services]:
    """A configuration of its own, with other directories, for the host of `world`; not started."""
    services = Services(world.proxy, name=unique("second"))
    yield services
    services.stop()


@pytest.mark.parametrize("arguments", [(), ("--cleanup",)])
@pytest.mark.parametrize("interface", ["eth0", "lo"])
def test_second_instance_in_the_namespace_is_refused(
    world: ProxyWorld, interface: str, arguments: tuple[str, ...]
) -> None:
    services = Services(world.proxy, name=unique("second"), interfaces=(interface,))
    world.begin_settled()
    before = world.qdisc(), world.assignments()
    assert "htb 4d50:" in before[0]
    for prefix in ((), IN_CONTAINER):
        assert run_daemon(world.proxy, services.config, *arguments, prefix=prefix) == refusal(world.services)
    assert (world.qdisc(), world.assignments()) == before
    assert world.errors() == []


def test_lock_ends_with_a_killed_daemon(world: ProxyWorld, second: Services) -> None:
    world.daemon.kill()
    start_answering(second)
    assert run_daemon(world.proxy, world.services.config) == refusal(second)
    second.stop()
    world.start_daemon()


def test_user_without_rights_takes_no_lock(world: ProxyWorld, second: Services) -> None:
    assert world.daemon.stop() == 0
    squatter = world.proxy.start("squatter", *WITHOUT_RIGHTS, EXECUTABLES / "python", "-c", SQUATTER)
    squatter.wait_until(lambda: bool(squatter.log_text()), "refused")
    assert squatter.log_text() == "refused: missing capability: CAP_NET_RAW; run as root or grant it in the unit\n"
    world.start_daemon()
    status, line = run_daemon(world.proxy, second.config)
    assert (status, line.count("\n")) == (os.EX_TEMPFAIL, 1)
    assert line.startswith("mptcp-throttled is running already in this network namespace: process ")
    assert squatter.exit_status is None
    squatter.stop()


def test_of_two_that_start_at_once_one_has_the_lock(hosts: Hosts) -> None:
    assert hosts.lab.proxy.run(EXECUTABLES / "python", "-c", RACE).stdout == f"{[1] * 30}\n"


def test_daemons_of_two_namespaces_run_together(world: ProxyWorld) -> None:
    services = Services(world.lab.origin, name=unique("second"))
    try:
        start_answering(services)
        assert world.services.status()["sniffer"]["connected"]
    finally:
        services.stop()
