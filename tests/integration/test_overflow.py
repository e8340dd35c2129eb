"""Overflow: Ethernet carries what Wi-Fi lacks of the rate that a client shall have, and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
from polling import eventually
from proxy_world import FREE, Hosts, ProxyWorld, receive_rates, serving

from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.topology import WIFI
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

OVERFLOW: Final = Rate(10_000_000)


def shape_wifi(world: ProxyWorld, rate: str) -> None:
    """Shape what the client receives over Wi-Fi."""
    interface = f"{world.lab.client.name}-{WIFI.interface}"
    world.lab.router.tc([f"qdisc replace dev {interface} root tbf burst 16384 latency 50ms rate {rate}"])


@pytest.fixture
def world(hosts: Hosts) -> Iterator[ProxyWorld]:
    """In the end Wi-Fi has its usual shape."""
    wifi, ethernet = WIFI_FIRST
    with serving(hosts, (wifi, replace(ethernet, overflow=OVERFLOW))) as running:
        try:
            yield running
        finally:
            shape_wifi(running, str(WIFI.rate))


def ethernet(world: ProxyWorld, seconds: float) -> float:
    """What the client receives over Ethernet, in bits per second."""
    return receive_rates(world.lab.client, seconds)["eth0"]


def test_ethernet_carries_what_wifi_lacks_while_it_lacks_it(world: ProxyWorld) -> None:
    world.download()
    world.wait_settled()
    assert ethernet(world, 4) < 1.5e6
    shape_wifi(world, "3mbit")
    eventually(lambda: ethernet(world, 2) > FREE, "what Wi-Fi lacks")
    # While Wi-Fi sends again what its queue has lost, it lacks more.
    eventually(lambda: all(5.5e6 < (each.rate or 0) < 8.5e6 for each in world.capped()), "the rate", seen=world.capped)
    (capped,) = world.capped()
    assert capped.reason == "wifi is live; cap: overflow: preferred paths carry less than 10mbit"
    explained = world.services.cli("explain", str(world.lab.client.address(world.lab.topology.ethernet, 4))).stdout
    assert "(overflow: preferred paths carry less than 10mbit); otherwise 1mbit" in explained
    assert FREE < ethernet(world, 6) < 8.5e6
    shape_wifi(world, str(WIFI.rate))
    eventually(lambda: [each.rate for each in world.capped()] == [1_000_000], "the cap again")
    eventually(lambda: ethernet(world, 2) < 1.5e6, "the cap held")


def test_client_that_asks_for_less_gets_no_more(world: ProxyWorld) -> None:
    world.download(rate_limit=Rate(2_000_000))
    world.wait_capped()
    assert ethernet(world, 8) < 0.5e6
    assert [each.rate for each in world.capped()] == [1_000_000]
