"""Pacing: under a cap a download gets nearly all that is permitted, and no socket stays paced without a reason."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from itertools import pairwise

from foreign_program import own_cgroup, sockets_of
from polling import eventually
from proxy_world import EXECUTABLES, MEGABYTE, Hosts, ProxyWorld, attended

from mptcp_lab.download import Download
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.squid import PORT
from mptcp_lab.topology import WIFI
from mptcp_throttle.units import Rate

PAYLOAD_PART = 1428 / 1514
"""Payload bytes of a full segment with MPTCP's options, of the bytes of its frame."""

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
from mptcp_throttled.kernel.sockets.pacing import PacedSockets
from mptcp_throttled.vocabulary.features import Situation
mounts = subprocess.run(["findmnt", "-rno", "TARGET", "-t", "cgroup2"], capture_output=True, text=True).stdout
sockets = PacedSockets((8080,), Path(mounts.split()[0]))
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


def test_capped_download_gets_80_percent_of_what_is_permitted(world: ProxyWorld) -> None:
    download = world.download()
    world.wait_paced()
    world.wait_settled()
    wait_received(download, 5 * MEGABYTE)  # TCP's slow start on Wi-Fi is over
    samples = watch(download, 6)
    (began, before), (ended, after) = samples[0], samples[-1]
    permitted = (1e6 + WIFI.rate.bits_per_second) * PAYLOAD_PART
    assert (after - before) * 8 / (ended - began) > 0.8 * permitted


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
    eventually(lambda: world.paced() == 0, "no socket paced", within=1)
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
    for pid in world.server_pids():
        for found in sockets_of(pid, PORT):
            if found.getsockopt(socket.SOL_SOCKET, SO_PROTOCOL) == socket.IPPROTO_TCP:
                yield found


def pacing_rate(world: ProxyWorld) -> list[str]:
    """The maximum pacing rates of established sockets, as ss(8) shows them behind their pacing rates."""
    return re.findall(r"pacing_rate \S+/(\S+)", world.lab.proxy.run("ss", "-tinH").stdout)


def test_plain_tcp_keeps_the_pace_and_unsent_limit_that_its_server_gave_it(world: ProxyWorld) -> None:
    plain = world.download(MEGABYTE, mptcp=False, rate_limit=Rate(4 * MEGABYTE))
    eventually(lambda: plain.received > 0, "plain TCP in progress")
    for found in plain_sockets(world):
        found.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 250_000)
        found.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, 50_000)
    received = plain.received
    eventually(lambda: plain.received > received + 200_000, "plain TCP goes on")
    assert pacing_rate(world) == ["2000000bps"]
    (left,) = (found.getsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT) for found in plain_sockets(world))
    assert left == 50_000
    assert plain.wait().intact


def test_listener_of_somebody_else_on_a_proxy_port_frees_nobody(hosts: Hosts) -> None:
    proxy = hosts.lab.proxy
    services = Services(proxy, WIFI_FIRST, name="two-ports", ports=(PORT, OTHER_PORT))
    with own_cgroup() as cgroup, attended(hosts, services) as world, services:
        world.begin_settled()
        world.wait_paced()
        marks = world.marks()
        for address in ("127.0.0.1", "0.0.0.0"):  # noqa: S104
            intruder = proxy.start(
                "intruder", "python3", "-c", LISTEN_AND_LEAVE, str(cgroup), address, machine_files=True
            )
            while intruder.exit_status is None:
                assert world.paced() == 1
                assert world.marks() == marks
            assert intruder.exit_status == 0, intruder.log_text()
        assert world.daemon.exit_status is None
