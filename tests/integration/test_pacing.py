"""A cap takes what it says and no more: the proxy's sockets are paced, and freed whatever happens to us."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

from bench import EXECUTABLES, MEGABYTE, Bench, eventually

from mptcp_lab.download import Download
from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.topology import WIFI

PAYLOAD_PART = 1428 / 1514

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
    """When how much had been received."""
    samples, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        samples.append((time.monotonic(), download.received))
        time.sleep(0.005)
    return samples


def longest_gap(samples: list[tuple[float, int]]) -> float:
    arrivals = [at for (_, before), (at, received) in pairwise(samples) if received > before]
    return max(later - earlier for earlier, later in pairwise(arrivals))


def test_under_a_cap_the_user_gets_nearly_all_that_is_permitted(work: Bench) -> None:
    download = work.download(200 * MEGABYTE)
    work.wait_capped()
    eventually(lambda: work.paced() == 1, "paced")
    time.sleep(1)
    samples = watch(download, 6)
    (began, before), (ended, after) = samples[0], samples[-1]
    permitted = (1e6 + WIFI.rate.bits_per_second) * PAYLOAD_PART
    assert (after - before) * 8 / (ended - began) > 0.8 * permitted
    work.abort(download)


def test_a_cap_that_begins_and_ends_in_mid_transfer_is_hardly_felt(work: Bench) -> None:
    work.services.ask("pause", None)
    download = work.download(40 * MEGABYTE)
    eventually(lambda: len(work.services.subflows()) == 2, "two subflows")
    time.sleep(1.5)
    work.services.ask("resume")
    work.wait_capped()
    assert longest_gap(watch(download, 2.5)) < 1.0
    work.services.ask("pause", None)
    eventually(lambda: work.paced() == 0, "free", within=1)
    result = download.wait()
    assert (result.exit_status, result.intact) == (0, True)


def test_sockets_that_a_killed_daemon_has_left_paced_are_freed_by_the_next(work: Bench) -> None:
    download = work.download(200 * MEGABYTE)
    work.wait_capped()
    eventually(lambda: work.paced() == 1, "paced")
    assert work.services.daemon is not None
    work.services.daemon.kill()
    assert work.paced() == 1
    wifi, ethernet = WIFI_FIRST
    work.services.configure([wifi, replace(ethernet, cap=None)])
    work.services.start_daemon()
    work.services.wait_ready()
    eventually(lambda: work.paced() == 0, "free", within=2)
    work.abort(download)


def test_a_daemon_of_another_network_namespace_on_the_same_cgroup_takes_no_pace_away(work: Bench) -> None:
    download = work.download(200 * MEGABYTE)
    work.wait_capped()
    eventually(lambda: work.paced() == 1, "paced")
    neighbour = work.lab.origin.start("neighbour", EXECUTABLES / "python", "-c", NEIGHBOUR, machine_files=True)
    eventually(lambda: neighbour.log_text() == "attached\n", "attached")
    for _ in range(20):
        assert work.paced() == 1
        time.sleep(0.05)
    neighbour.stop()
    work.abort(download)


def test_a_daemon_that_stops_leaves_no_socket_paced(work: Bench) -> None:
    download = work.download(20 * MEGABYTE)
    work.wait_capped()
    eventually(lambda: work.paced() == 1, "paced")
    assert work.services.daemon is not None
    assert work.services.daemon.stop() == 0
    assert work.paced() == 0
    assert download.wait().intact
