"""A preferred path that is sick does not justify a cap: the other path carries what it cannot."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
from polling import eventually
from proxy_world import FREE, ProxyWorld, receive_rates, serving

from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.topology import WIFI
from mptcp_throttle.model import Health
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxy_world import Hosts

USUAL: Final = f"rate {WIFI.rate} limit 300000"
WIDE: Final = Health(rtt=1.0, loss=0.3, rate=Rate.parse("500kbit"))
"""Bounds that Wi-Fi keeps beside other tests, too."""
SLOW: Final = "rate below 3mbit"
SICK: Final = {
    SLOW: (Health(rate=Rate.parse("3mbit")), "rate 1mbit limit 300000"),
    "round trip above 50ms": (Health(rtt=0.05), "rate 200kbit limit 60000"),
    "loss above 5%": (Health(loss=0.05), "rate 4mbit limit 17000"),
}
"""By what the reason names: the bounds, and how Wi-Fi is shaped so that it does not keep them."""


@contextmanager
def world_with(hosts: Hosts, healthy: Health, *, steering: bool = True) -> Iterator[ProxyWorld]:
    """The services, with these bounds for Wi-Fi. In the end Wi-Fi has its usual shape."""
    wifi, ethernet = WIFI_FIRST
    with serving(hosts, (replace(wifi, healthy=healthy), ethernet), {"steering": steering}) as world:
        try:
            yield world
        finally:
            shape_wifi(world, USUAL)


def shape_wifi(world: ProxyWorld, parameters: str) -> None:
    """Shape what the client receives over Wi-Fi."""
    interface = f"{world.lab.client.name}-{WIFI.interface}"
    world.lab.router.tc([f"qdisc replace dev {interface} root tbf burst 16384 {parameters}"])


def reason(world: ProxyWorld) -> str:
    """Why the Ethernet subflow has the rate that it has."""
    return next(subflow.reason for subflow in world.services.subflows() if subflow.network == "ethernet")


@pytest.mark.parametrize("ailment", SICK)
def test_cap_is_lifted_while_wifi_is_sick_and_comes_back(hosts: Hosts, ailment: str) -> None:
    bounds, shape = SICK[ailment]
    with world_with(hosts, bounds) as world:
        world.download()
        world.wait_settled()
        shape_wifi(world, shape)
        eventually(lambda: reason(world) == f"wifi is sick: {ailment}", "lifted", seen=lambda: reason(world))
        assert f"wifi is sick: {ailment}" in world.daemon.log_text()
        shape_wifi(world, USUAL)
        eventually(lambda: reason(world) == "wifi is live", "capped again", seen=lambda: reason(world))
        eventually(lambda: receive_rates(world.lab.client, 2)["eth0"] < 1.5e6, "the cap held")


@pytest.mark.parametrize("steering", [True, False])
def test_other_path_carries_what_slow_wifi_cannot(hosts: Hosts, steering: bool) -> None:
    bounds, shape = SICK[SLOW]
    with world_with(hosts, bounds, steering=steering) as world:
        world.download()
        world.wait_settled()
        shape_wifi(world, shape)
        eventually(lambda: receive_rates(world.lab.client, 2)["eth0"] > FREE, "Ethernet in use")


def test_healthy_wifi_keeps_the_cap(hosts: Hosts) -> None:
    with world_with(hosts, WIDE) as world:
        world.download()
        world.wait_settled()
        for _ in range(5):
            assert receive_rates(world.lab.client, 1)["eth0"] < 1.5e6
            assert reason(world) == "wifi is live"
        assert " is sick" not in world.daemon.log_text()
