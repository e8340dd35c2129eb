"""A proxy with an interface without an Ethernet header beside another: both directions are throttled there, too."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

import pytest
from middlebox import SentBy, stripping
from polling import eventually
from port_client import download_from
from proxy_world import FREE, LONG, Hosts, ProxyWorld, ethernet_with, receive_rates, send_rates
from second_interface import TWO_CLIENTS, second_interface_of_tun, send_small_pulses

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.topology import ETHERNET, WIFI
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

CAP: Final = Rate.parse("1mbit")
TOPOLOGY: Final = TWO_CLIENTS
INTERFACES: Final = ("eth0", "tun0")
NETWORKS: Final = ethernet_with({RateKind.UPLINK_CAP: CAP})


@pytest.fixture(scope="module")
def hosts(hosts: Hosts) -> Iterator[Hosts]:
    with second_interface_of_tun(hosts):
        send_small_pulses(hosts.lab.clients["second"])
        yield hosts


def test_uplink_cap_holds_on_an_interface_without_ethernet_header(world: ProxyWorld) -> None:
    proxy, second = world.proxy, world.lab.clients["second"]
    world.upload(LONG, second)
    world.upload(LONG)
    eventually(lambda: len(world.services.subflows()) == 4, "two subflows each")
    eventually(lambda: send_rates(second, 1)["eth0"] < 1.5e6, "what was queued is sent")
    windows = [send_rates(second, 4) for _ in range(3)]
    assert max(rates["eth0"] for rates in windows) < 2e6
    assert 0.5e6 < statistics.mean(rates["eth0"] for rates in windows) < 1.3e6
    assert statistics.median(rates["wlan0"] for rates in windows) > 10e6
    counters = world.services.status()["daemon"]["features"]["uplinks"]["counters"]
    assert counters["repeated"] > 0
    assert counters["not_repeated"] == 0
    world.abort()
    eventually(lambda: "tcx-" not in "".join(world.services.records), "the programs of uplinks detached")
    world.wait_restored()
    assert world.daemon.stop() == 0
    assert kernel_state(proxy) == world.original
    assert "clsact" not in proxy.run("tc", "qdisc", "show").stdout


def test_cap_holds_on_an_interface_without_ethernet_header(world: ProxyWorld) -> None:
    second = world.lab.clients["second"]
    world.begin_settled(client=second)
    rates = receive_rates(second, 3.0)
    assert 0.5 * CAP.bits_per_second < rates["eth0"] < 1.25 * CAP.bits_per_second
    assert rates["wlan0"] > 10 * rates["eth0"]


def test_download_is_kept_going_without_ethernet_header_and_data_acks(world: ProxyWorld) -> None:
    second = world.lab.clients["second"]
    second.ip([f"mptcp endpoint add {second.address(ETHERNET, 4)} dev eth0 subflow"])
    download_from(world, second.address(WIFI, 4), 45000, client=second)
    world.wait_capped()
    with stripping(world.lab, WIFI, (SentBy.CLIENT,)):
        eventually(lambda: receive_rates(second, 3)["eth0"] > FREE, "Ethernet in use")
