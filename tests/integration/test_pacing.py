"""Pacing: under a cap a download gets nearly all that is permitted, and no socket stays paced without a reason."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

from polling import eventually
from proxy_world import EXECUTABLES, MEGABYTE, ProxyWorld

from mptcp_lab.download import Download
from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.topology import WIFI

PAYLOAD_PART = 1428 / 1514
"""Payload bytes of a full segment with MPTCP's options, of the bytes of its frame."""

NEIGHBOUR = """
import subprocess
import time
from pathlib import Path
from mptcp_throttled.kernel.pacing import PacedSockets
mounts = subprocess.run(["findmnt", "-rno", "TARGET", "-t", "cgroup2"], capture_output=True, text=True).stdout
sockets = PacedSockets((8080,), Path(mounts.split()[0]))
print("attached" if sockets.read().paces is not None else "not attached", flush=True)
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


def test_sockets_paced_by_a_killed_daemon_are_freed_by_the_next(world: ProxyWorld) -> None:
    world.download()
    world.wait_paced()
    world.daemon.kill()
    assert world.paced() == 1
    wifi, ethernet = WIFI_FIRST
    world.services.configure([wifi, replace(ethernet, cap=None)])
    world.start_daemon()
    eventually(lambda: world.paced() == 0, "no socket paced", within=2)


def test_pace_survives_a_daemon_of_another_namespace_on_the_cgroup(world: ProxyWorld) -> None:
    download = world.download()
    world.wait_paced()
    neighbour = world.lab.origin.start("neighbour", EXECUTABLES / "python", "-c", NEIGHBOUR, machine_files=True)
    eventually(lambda: neighbour.log_text() == "attached\n", "attached")
    before = download.received
    while download.received < before + 5 * MEGABYTE:
        assert world.paced() == 1
    neighbour.stop()
