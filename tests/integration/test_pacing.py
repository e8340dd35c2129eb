"""Pacing: under a cap a download gets nearly all that is permitted, and no socket is paced without a reason.

The program on the proxy's sockets paces for the daemon, and decides by itself while the daemon does not. What it
promises without steering holds with it, too: a subflow is held back instead of paced (test_steered_downloads.py).
"""

from __future__ import annotations

import errno
import re
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from foreign_program import own_cgroup
from polling import eventually
from proxy_world import (
    EXECUTABLES,
    MEGABYTE,
    WITHOUT_CAP,
    Hosts,
    ProxyWorld,
    attended,
    configured,
    ethernet_with,
    proxy_world,
    receive_rates,
    serving,
)
from refusals import refused

from mptcp_lab.download import Download
from mptcp_lab.namespaces import in_namespace
from mptcp_lab.origin import endless
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.squid import PORT
from mptcp_lab.throttled import Client
from mptcp_lab.topology import ETHERNET, WIFI, ClientSpec, Topology
from mptcp_throttle.model import RateKind
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import Proxies
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.sockets.pacing import PacedSockets

PAYLOAD_PART = 1428 / 1514
"""Payload bytes of a full segment with MPTCP's options, of the bytes of its frame."""

DAEMON = {"steering": False}
WITH_AND_WITHOUT_STEERING = [{"steering": True}, {"steering": False}]
either_way = pytest.mark.parametrize("world", WITH_AND_WITHOUT_STEERING, indirect=True, ids=["steering", "paces"])
on_own_hosts_either_way = pytest.mark.parametrize(
    "own_world", WITH_AND_WITHOUT_STEERING, indirect=True, ids=["steering", "paces"]
)

OTHER_PORT = 9090
# include/uapi/asm-generic/socket.h, include/uapi/linux/tcp.h
SO_PROTOCOL, SO_MAX_PACING_RATE, TCP_NOTSENT_LOWAT = 38, 47, 25

LISTEN_AND_LEAVE = f"""
import os, socket, sys, time
with open(sys.argv[1] + "/cgroup.procs", "w") as processes:
    processes.write(str(os.getpid()))
for _ in range(3):
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((sys.argv[2], {OTHER_PORT}))
        listener.listen()
        time.sleep(1.2)
    time.sleep(1.2)
"""
"""A process of its own cgroup, whose listener comes and goes more slowly than the daemon looks."""

NEIGHBOUR = """
import subprocess
import time
from pathlib import Path
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import Proxies
from mptcp_throttled.kernel.sockets.pacing import PacedSockets
from mptcp_throttled.vocabulary.features import Situation
mounts = subprocess.run(["findmnt", "-rno", "TARGET", "-t", "cgroup2"], capture_output=True, text=True).stdout
sockets = PacedSockets(Proxies.only(Ports.of([8080])), Path(mounts.split()[0]))
sockets.follow(Situation())
print("attached" if sockets.is_attached else "not attached", flush=True)
time.sleep(60)
"""


def watch(download: Download, seconds: float) -> list[tuple[float, int]]:
    """Times, and the bytes that had been received by then."""
    samples, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        samples.append((time.monotonic(), download.received))
        time.sleep(0.005)
    return samples


def longest_gap(samples: list[tuple[float, int]]) -> float:
    """The longest time in which nothing arrived, in seconds."""
    arrivals = [at for (_, before), (at, received) in pairwise(samples) if received > before]
    return max(later - earlier for earlier, later in pairwise([samples[0][0], *arrivals, samples[-1][0]]))


def wait_received(download: Download, size: int) -> None:
    """Wait until `size` more bytes have arrived."""
    before = download.received
    eventually(lambda: download.received >= before + size, f"{size} bytes received")


@either_way
def test_capped_download_gets_80_percent_of_what_is_permitted(world: ProxyWorld) -> None:
    download = world.download()
    world.wait_restrained()
    world.wait_settled()
    wait_received(download, 5 * MEGABYTE)  # TCP's slow start on Wi-Fi is over
    permitted = (1e6 + WIFI.rate.bits_per_second) * PAYLOAD_PART

    def part() -> float:
        samples = watch(download, 6)
        (began, before), (ended, after) = samples[0], samples[-1]
        return (after - before) * 8 / (ended - began) / permitted

    # Not at once on a busy machine: what runs beside it may need the processors for seconds.
    eventually(lambda: part() > 0.8, "80 % of what is permitted", seen=part)


@either_way
def test_cap_in_mid_transfer_stops_the_data_for_less_than_a_second(world: ProxyWorld) -> None:
    world.services.ask("pause", None)
    download = world.download()
    eventually(lambda: len(world.services.subflows()) == 2, "two subflows")
    wait_received(download, 5 * MEGABYTE)
    document = world.download(8 * MEGABYTE)
    world.services.ask("resume")
    world.wait_capped(2)
    assert longest_gap(watch(download, 2.5)) < 1.0
    world.services.ask("pause", None)
    eventually(lambda: not world.restrained(), "no subflow paced or held back", within=1)
    result = document.wait()
    assert (result.exit_status, result.intact) == (0, True)


def test_pace_survives_a_daemon_of_another_namespace_on_the_cgroup(world: ProxyWorld) -> None:
    download = world.download()
    world.wait_paced()
    neighbour = world.lab.origin.start("neighbour", EXECUTABLES / "python", "-c", NEIGHBOUR, machine_files=True)
    eventually(lambda: neighbour.log_text() == "attached\n", "attached")
    before = download.received
    while download.received < before + 5 * MEGABYTE:
        assert world.paced() == 1
    neighbour.stop()


def plain_sockets(world: ProxyWorld) -> Iterator[socket.socket]:
    """Squid's connections with clients that do not use MPTCP."""
    for sock in world.server_sockets():
        if sock.getsockopt(socket.SOL_SOCKET, SO_PROTOCOL) == socket.IPPROTO_TCP:
            yield sock


def pacing_rate(world: ProxyWorld) -> list[str]:
    """The maximum pacing rates of established sockets, as ss(8) shows them behind their pacing rates."""
    return re.findall(r"pacing_rate \S+/(\S+)", world.proxy.run("ss", "-tinH").stdout)


def test_plain_tcp_keeps_the_pace_and_unsent_limit_that_its_server_gave_it(world: ProxyWorld) -> None:
    plain = world.download(MEGABYTE, mptcp=False, rate_limit=Rate(4 * MEGABYTE))
    eventually(lambda: plain.received > 0, "plain TCP in progress")
    for sock in plain_sockets(world):
        sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 250_000)
        sock.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, 50_000)
    received = plain.received
    eventually(lambda: plain.received > received + 200_000, "plain TCP goes on")
    assert pacing_rate(world) == ["2000000bps"]
    (left,) = (sock.getsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT) for sock in plain_sockets(world))
    assert left == 50_000
    assert plain.wait().intact


def test_listener_of_another_program_on_a_proxy_port_frees_no_subflow(hosts: Hosts) -> None:
    proxy = hosts.lab.proxy
    services = Services(proxy, WIFI_FIRST, name="two-ports", ports=(PORT, OTHER_PORT), daemon=DAEMON)
    with own_cgroup() as cgroup, attended(hosts, services) as world, services:
        world.begin_settled()
        world.wait_paced()
        assignments = world.assignments()
        for address in ("127.0.0.1", "0.0.0.0"):  # noqa: S104
            intruder = proxy.start(
                "intruder", "python3", "-c", LISTEN_AND_LEAVE, str(cgroup), address, machine_files=True
            )
            while intruder.exit_status is None:
                assert world.paced() == 1
                assert world.assignments() == assignments
            assert intruder.exit_status == 0, intruder.log_text()
        assert world.daemon.exit_status is None


# What the program does without the daemon


@on_own_hosts_either_way
def test_kernel_restrains_and_frees_subflows_before_the_daemon_knows(own_world: ProxyWorld) -> None:
    client = own_world.lab.client
    change = ("ip", "mptcp", "endpoint", "change", str(client.address(WIFI, 4)))
    with own_world.daemon.suspended():
        own_world.download()
        own_world.wait_restrained()
        assert "htb" not in own_world.qdisc()
        client.run(*change, "backup")
        eventually(lambda: not own_world.restrained(), "free beside a backup", within=2)
        client.run(*change, "nobackup")
        own_world.wait_restrained()
    own_world.wait_capped()
    with own_world.daemon.suspended():
        client.leave(WIFI)
        eventually(lambda: not own_world.restrained(), "free after the end of Wi-Fi", within=1)


@on_own_hosts_either_way
def test_kernel_paces_although_all_subflows_are_backups(own_world: ProxyWorld) -> None:
    client = own_world.lab.client
    ethernet, wifi = (str(client.address(link, 4)) for link in (ETHERNET, WIFI))
    client.run("ip", "mptcp", "endpoint", "add", ethernet, "dev", "eth0")
    own_world.download()
    own_world.wait_restrained()
    client.run("ip", "mptcp", "endpoint", "change", wifi, "backup")
    eventually(lambda: not own_world.restrained(), "a backup justifies no cap")
    client.run("ip", "mptcp", "endpoint", "change", ethernet, "backup")
    own_world.wait_paced()
    own_world.wait_capped()


@pytest.mark.parametrize("daemon", WITH_AND_WITHOUT_STEERING, ids=["steering", "paces"])
def test_kernel_adopts_a_connection_that_is_older_than_the_daemon(hosts: Hosts, daemon: dict[str, bool]) -> None:
    with configured(hosts, daemon=daemon) as world:
        world.services.start_sniffer()
        download = world.download()
        eventually(lambda: download.received > 3 * MEGABYTE, "the download in progress")
        assert world.restrained() == set()
        world.start_daemon()
        world.wait_restrained()
        world.wait_capped()


@on_own_hosts_either_way
def test_capped_subflow_that_joined_is_freed_after_a_killed_daemon(own_world: ProxyWorld) -> None:
    lab, client = own_world.lab, own_world.lab.client
    client.run("ip", "mptcp", "endpoint", "add", str(client.address(ETHERNET, 4)), "dev", "eth0", "subflow")
    document = f"http://{lab.origin_address(4)}/{endless(own_world.origin).name}"
    begin_over_wifi = ("--from", str(client.address(WIFI, 4)))
    fetch = (sys.executable, "-m", "mptcp_lab.fetch", str(lab.proxy_address(4)), str(PORT), *begin_over_wifi, document)
    client.start("wifi-first", *fetch)
    (capped,) = own_world.wait_settled()
    assert capped.network == "ethernet"
    own_world.wait_restrained()
    own_world.daemon.kill()
    own_world.wait_restrained()
    own_world.services.clean_up()
    assert own_world.restrained() == set()


def test_sockets_are_freed_although_the_kernel_refuses_at_first(world: ProxyWorld) -> None:
    world.begin_paced()
    world.daemon.kill()
    with refused("bpf object load", number=errno.EPERM, times=3), in_namespace(world.proxy.namespace):
        assert PacedSockets(Proxies.only(Ports.of([PORT]))).free_sockets() == 0
    assert world.paced() == 0


@either_way
def test_idle_subflow_is_free_when_the_daemon_stops(world: ProxyWorld) -> None:
    idle = world.download()
    world.wait_settled()
    world.wait_restrained()

    def carried() -> list[str]:
        return re.findall(r"bytes_acked:\d+", world.proxy.run("ss", "-tinH").stdout)

    def is_idle() -> bool:
        before = carried()
        time.sleep(0.6)
        return carried() == before

    with idle.suspended():
        eventually(is_idle, "nothing acknowledged any more")
        assert world.daemon.stop() == 0
        assert world.restrained() == set()


@pytest.mark.parametrize("daemon", WITH_AND_WITHOUT_STEERING, ids=["steering", "paces"])
def test_first_subflow_is_paced_for_the_provisional_time_alone(daemon: dict[str, bool]) -> None:
    wifi, ethernet = WIFI_FIRST
    networks = [wifi, replace(ethernet, provisional=3.0)]
    with proxy_world(Topology(clients=(ClientSpec(wifi=None),)), networks, daemon) as world:
        world.begin_paced()
        eventually(lambda: not world.restrained(), "free", within=5)
        assert world.capped() == []


@pytest.mark.parametrize("daemon", WITH_AND_WITHOUT_STEERING, ids=["steering", "paces"])
def test_capped_subflow_of_a_limited_network_is_never_free(daemon: dict[str, bool]) -> None:
    networks = ethernet_with({RateKind.LIMIT: Rate(2_000_000)})
    with proxy_world(networks=networks, daemon={"classifier": "socket", **daemon}) as world:
        world.begin_settled()
        with world.daemon.suspended():
            world.lab.client.leave(WIFI)
            eventually(lambda: not world.restrained(), "the cap has ended")
            assert receive_rates(world.lab.client, 3)["eth0"] < 2.5e6


@pytest.mark.parametrize("daemon", WITH_AND_WITHOUT_STEERING, ids=["steering", "paces"])
@pytest.mark.parametrize("why", ["no cap", "paused"])
def test_subflow_that_may_not_be_capped_is_never_restrained(hosts: Hosts, why: str, daemon: dict[str, bool]) -> None:
    with serving(hosts, WITHOUT_CAP if why == "no cap" else WIFI_FIRST, daemon) as world:
        if why == "paused":
            world.services.ask("pause", None)
        download = world.download(10 * MEGABYTE)
        restrained = set[Client]()

        def received(size: int) -> bool:
            restrained.update(world.restrained())
            return download.received > size

        eventually(lambda: received(5 * MEGABYTE), "the download in progress")
        assert restrained == set()
        assert download.wait().intact
