"""Bursts: what a share carries beyond its rate after a quiet time is bounded, and short downloads wait for nothing."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

import pytest
from polling import eventually
from proxy_world import Hosts, ProxyWorld, proxy_world, serving

from mptcp_lab.sampler import PathMeter
from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.topology import WIFI, ClientSpec, Topology
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_throttle.model import AccessNetwork

CAP: Final = Rate(1_000_000)
BURST: Final = 1_000_000
SLOW_WIFI: Final = "1mbit"
OBJECT: Final = 300_000
OBJECTS: Final = 3
PAGES: Final = 3
WITHOUT_STEERING: Final = {"pacing": False, "classifier": "rules"}
PACKET: Final = 65_536
"""What the kernel makes one packet of (GSO) may all leave when any of it may."""
FRAME: Final = 1514 / 1500
"""Interfaces count the headers of Ethernet, too."""
QUEUE_SECONDS: Final = 0.2
"""The access link's queue, and twice the time between samples: what has left earlier arrives later."""


def networks(burst: int = BURST) -> tuple[AccessNetwork, AccessNetwork]:
    wifi, ethernet = WIFI_FIRST
    return wifi, replace(ethernet, burst=burst)


def limited_only() -> tuple[AccessNetwork, ...]:
    """A limit with a burst, which also concerns connections that have no other path."""
    wifi, ethernet = networks()
    return wifi, ethernet.with_rates({RateKind.CAP: None, RateKind.LIMIT: CAP})


def shape_wifi(hosts: Hosts, rate: str) -> None:
    """Shape what the client receives over Wi-Fi."""
    interface = f"{hosts.lab.client.name}-{WIFI.interface}"
    hosts.lab.router.tc([f"qdisc replace dev {interface} root tbf burst 16384 latency 50ms rate {rate}"])


@pytest.fixture
def slow_wifi(hosts: Hosts) -> Iterator[Hosts]:
    """In the end Wi-Fi has its usual shape."""
    shape_wifi(hosts, SLOW_WIFI)
    try:
        yield hosts
    finally:
        shape_wifi(hosts, str(WIFI.rate))


def load_page(world: ProxyWorld) -> float:
    """Download some small objects at the same time; how many seconds that takes."""
    began = time.monotonic()
    for download in [world.download(OBJECT) for _ in range(OBJECTS)]:
        assert download.wait().intact
    return time.monotonic() - began


def most_beyond(meter: PathMeter, rate: Rate) -> float:
    """The most IP bytes beyond the rate that Ethernet has received in any time."""
    points = meter.received("eth0").points
    return max(
        (late - early) / FRAME - rate.bytes_per_second * (end - begin + QUEUE_SECONDS)
        for (begin, early), (end, late) in combinations(points, 2)
    )


def wait_until(meter: PathMeter, at: float) -> None:
    eventually(lambda: meter.interfaces[-1].at >= at, "sampled", within=60)


def check_long_downloads(world: ProxyWorld, rate: Rate = CAP) -> None:
    """Two long downloads right after each other, and a reload: they have one burst, and only the rate after it."""
    with PathMeter(world.lab.client, ("eth0",)) as meter:
        for _ in range(2):
            download = world.download()
            wait_until(meter, time.monotonic() + 8)
            world.abort(download)
            world.services.cli("reload")
        points = meter.received("eth0").points
        beyond = most_beyond(meter, rate)
        assert beyond <= BURST + PACKET
        assert beyond >= 0.3 * BURST, "it has its burst"
        end = points[-1][0]
        held = meter.received("eth0").mbps(end - 6, end)
    assert held < 1.25 * rate.bits_per_second / 1e6


@pytest.mark.parametrize("daemon", [{}, WITHOUT_STEERING], ids=["steered", "rules"])
def test_page_is_as_fast_as_without_a_cap_and_long_download_is_held(
    slow_wifi: Hosts, daemon: dict[str, object]
) -> None:
    with serving(slow_wifi, networks(PAGES * BURST), daemon) as world:
        with_burst = [load_page(world) for _ in range(PAGES)]
        world.services.cli("pause")
        without_cap = [load_page(world) for _ in range(PAGES)]
    assert statistics.median(with_burst) < 1.5 * statistics.median(without_cap) + 0.1


@pytest.mark.parametrize("daemon", [{}, WITHOUT_STEERING], ids=["steered", "rules"])
def test_long_downloads_after_each_other_have_one_burst(slow_wifi: Hosts, daemon: dict[str, object]) -> None:
    with serving(slow_wifi, networks(), daemon) as world:
        check_long_downloads(world)


@pytest.mark.parametrize("daemon", [{}, WITHOUT_STEERING], ids=["paced", "rules"])
def test_limit_of_an_only_path_has_a_burst(daemon: dict[str, object]) -> None:
    with proxy_world(Topology((ClientSpec(wifi=None),)), limited_only(), daemon) as world:
        assert world.download(BURST // 2).wait().goodput > 1.5 * CAP.bits_per_second
        download = world.download()
        with PathMeter(world.lab.client, ("eth0",)) as meter:
            wait_until(meter, time.monotonic() + 8)
            beyond = most_beyond(meter, CAP)
        world.abort(download)
    assert beyond <= BURST // 2 + 2 * PACKET
