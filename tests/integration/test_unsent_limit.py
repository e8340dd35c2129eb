"""The first subflow of a connection has next to nothing unsent from its first moment on, where it may be capped."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from polling import eventually
from proxy_world import (
    FREE,
    MEGABYTE,
    WITHOUT_CAP,
    Hosts,
    ProxyWorld,
    configured,
    ethernet_with,
    receive_rates,
    serving,
)
from refusals import refused
from unsent_limits import UnsentLimitReader, UnsentLimits

from mptcp_lab.dropped_packets import dropped
from mptcp_lab.namespaces import in_namespace
from mptcp_lab.process import Process
from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.squid import PORT
from mptcp_lab.topology import WIFI, ClientSpec, Lab, Topology
from mptcp_throttle.model import AccessNetwork, RateKind
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import Proxies
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.sockets.pacing import PacedSockets

LIMITED_ONLY = ethernet_with({RateKind.CAP: None, RateKind.LIMIT: Rate.parse("4mbit")})

ONE_SEGMENT = 1448
LIMIT_OF_SLOW_PREFERRED = (32 << 10) + 1
OTHER_PORT = 9090

CONNECT_AND_SEND_NOTHING = """
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as client:
    client.connect((sys.argv[1], int(sys.argv[2])))
    time.sleep(60)
"""
ACCEPT = f"""
import socket, time
with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as listener:
    listener.bind(("", {OTHER_PORT}))
    listener.listen()
    connection = listener.accept()
    time.sleep(60)
"""


WITHOUT_STEERING = pytest.mark.parametrize("world", [{"steering": False}], indirect=True, ids=["paces"])

TOPOLOGY = Topology(clients=(ClientSpec("one", wifi=None), ClientSpec("both")))
"""The first client has Ethernet alone, so that its cap is always ahead; the second has Wi-Fi, too."""


@pytest.fixture(scope="module")
def reader(hosts: Hosts) -> Iterator[UnsentLimitReader]:
    """Of the proxy's sockets."""
    reader = UnsentLimitReader(hosts.lab.proxy)
    yield reader
    reader.close()


Read = Callable[[], UnsentLimits]


@pytest.fixture(scope="module")
def limits(reader: UnsentLimitReader) -> Read:
    """Of the sockets on the proxy's port."""
    return lambda: reader.read(PORT)


def connect(lab: Lab, port: int = PORT) -> Process:
    """Let the client open a connection, through which nothing is sent."""
    command = ("-c", CONNECT_AND_SEND_NOTHING, str(lab.proxy_address(4)), str(port))
    return lab.client.start(f"idle-{port}", sys.executable, *command)


@pytest.fixture(scope="module")
def untouched(hosts: Hosts, limits: Read) -> int:
    """The limit of a first subflow where no service of ours runs."""
    client = connect(hosts.lab)
    eventually(lambda: limits().first != (), "a connection")
    (limit,) = limits().first
    client.stop()
    return limit


def test_first_subflow_is_limited_before_anything_is_sent(world: ProxyWorld, limits: Read) -> None:
    with world.daemon.suspended():
        connect(world.lab)
        eventually(lambda: limits().first != (), "a connection")
        assert limits() == UnsentLimits(first=(ONE_SEGMENT,))


def test_download_keeps_the_limit_and_loses_nothing(world: ProxyWorld, limits: Read) -> None:
    download = world.download(5 * MEGABYTE)
    seen = set()

    def received(size: int) -> bool:
        seen.add(limits().first)
        return download.received >= size

    eventually(lambda: received(4 * MEGABYTE), "4 MB received")
    assert seen - {()} == {(ONE_SEGMENT,)}
    assert download.wait().intact
    assert world.paced() == 0


@WITHOUT_STEERING
def test_limit_stays_when_the_preferred_path_goes(hosts: Hosts, world: ProxyWorld, limits: Read) -> None:
    client = hosts.lab.clients["both"]
    world.begin_paced(client=client)
    assert limits().first[0] > ONE_SEGMENT  # that of the pace
    assert limits().joined != (ONE_SEGMENT,)
    world.proxy.run("ss", "-K", "-t", "dst", str(client.address(WIFI, 4)))
    eventually(lambda: world.paced() == 0, "no socket paced", within=2)
    eventually(lambda: limits() == UnsentLimits(first=(ONE_SEGMENT,)), "limited")


@pytest.mark.parametrize("world", [{"steering": True}, {"steering": False}], indirect=True, ids=["steering", "paces"])
def test_what_a_dead_preferred_path_had_is_sent_again_at_full_rate(
    hosts: Hosts, world: ProxyWorld, limits: Read
) -> None:
    client = hosts.lab.clients["both"]
    world.download(client=client)
    world.wait_restrained()
    with dropped(hosts.lab.router, "FORWARD", "-d", str(client.address(WIFI, 4))):
        eventually(lambda: not world.restrained(), "no subflow paced or held back")
        eventually(lambda: receive_rates(client, 2)["eth0"] > FREE, "Ethernet in use")
        eventually(lambda: ONE_SEGMENT in limits().first, "limited")


def test_slow_preferred_path_keeps_little_unsent(hosts: Hosts, limits: Read) -> None:
    wifi, ethernet = WIFI_FIRST
    slow = wifi.with_rates({RateKind.LIMIT: Rate.parse("3mbit")})
    with serving(hosts, (slow, ethernet)) as world:
        download = world.download(client=hosts.lab.clients["both"])
        world.wait_capped()
        eventually(lambda: download.received > 2 * MEGABYTE, "2 MB received")
        seen = []
        for _ in range(40):
            seen.append(limits().joined)
            time.sleep(0.1)
        assert seen.count((LIMIT_OF_SLOW_PREFERRED,)) > 0.9 * len(seen), seen


@pytest.mark.parametrize("networks", [WITHOUT_CAP, LIMITED_ONLY], ids=["unlimited", "limit"])
def test_network_without_a_cap_has_the_limit_of_the_kernel(
    hosts: Hosts, limits: Read, untouched: int, networks: tuple[AccessNetwork, ...]
) -> None:
    with serving(hosts, networks) as world:
        download = world.download()
        eventually(lambda: download.received > MEGABYTE, "the download in progress")
        assert limits() == UnsentLimits(first=(untouched,))


def test_plain_tcp_and_other_ports_have_the_limit_of_the_kernel(
    untouched: int, world: ProxyWorld, limits: Read, reader: UnsentLimitReader
) -> None:
    server = world.proxy.start("other", sys.executable, "-c", ACCEPT)
    eventually(lambda: world.proxy.listens(OTHER_PORT, mptcp=True), "listening")
    connect(world.lab, OTHER_PORT)
    eventually(lambda: reader.read(OTHER_PORT).first != (), "a connection to another port")
    plain = world.download(mptcp=False)
    eventually(lambda: plain.received > MEGABYTE, "plain TCP in progress")
    assert limits() == UnsentLimits(plain=(untouched,))
    assert reader.read(OTHER_PORT) == UnsentLimits(first=(untouched,))
    server.stop()


def take_the_cap_away(world: ProxyWorld) -> None:
    world.services.configure(WITHOUT_CAP)
    world.hang_up()


def pause(world: ProxyWorld) -> None:
    world.services.ask("pause", None)


def lose_the_sniffer(world: ProxyWorld) -> None:
    world.sniffer.kill()


def stop(world: ProxyWorld) -> None:
    assert world.daemon.stop() == 0


def clean_up(world: ProxyWorld) -> None:
    world.daemon.kill()
    world.services.clean_up()


def kill_and_start_without_cap(world: ProxyWorld) -> None:
    world.daemon.kill()
    world.services.configure(WITHOUT_CAP)
    world.start_daemon()


def kill_and_start_without_pacing(world: ProxyWorld) -> None:
    world.daemon.kill()
    world.services.configure_daemon(pacing=False)
    world.start_daemon()


def kill_start_and_stop(world: ProxyWorld) -> None:
    world.daemon.kill()
    world.start_daemon()
    stop(world)


ENDS = (
    take_the_cap_away,
    pause,
    lose_the_sniffer,
    stop,
    clean_up,
    kill_and_start_without_cap,
    kill_and_start_without_pacing,
    kill_start_and_stop,
)


@pytest.mark.parametrize("end", ENDS)
def test_limit_goes_with_the_last_reason_for_it(
    untouched: int, world: ProxyWorld, limits: Read, end: Callable[[ProxyWorld], None]
) -> None:
    connect(world.lab)
    eventually(lambda: limits().first == (ONE_SEGMENT,), "limited")
    end(world)
    eventually(lambda: limits().first == (untouched,), "no longer limited", within=5)


def test_connection_that_is_older_than_the_daemon_is_limited(hosts: Hosts, limits: Read, untouched: int) -> None:
    with configured(hosts) as world:
        world.services.start_sniffer()
        connect(world.lab)
        eventually(lambda: limits().first == (untouched,), "a connection")
        world.start_daemon()
        eventually(lambda: limits().first == (ONE_SEGMENT,), "limited")


def test_sockets_are_freed_although_the_kernel_refuses_at_first(
    untouched: int, world: ProxyWorld, limits: Read
) -> None:
    connect(world.lab)
    eventually(lambda: limits().first == (ONE_SEGMENT,), "limited")
    world.daemon.kill()
    with refused("bpf", number=errno.ENOMEM, times=3), in_namespace(world.proxy.namespace):
        assert PacedSockets(Proxies.only(Ports.of([PORT]))).free_sockets() == 0
    assert limits().first == (untouched,)
