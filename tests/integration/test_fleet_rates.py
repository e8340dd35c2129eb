"""Two proxies, one client on both, and a real server: together they give it no more than its rate, as it asks for."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from fleet_world import fleet_of
from polling import eventually
from proxy_world import receive_rates

from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.topology import ClientSpec, Topology
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleet_world import Fleet
    from proxy_world import ProxyWorld

RATE: Final = 6_000_000
NETWORKS: Final = (WIFI_FIRST[0], replace(WIFI_FIRST[1], rates={RateKind.LIMIT: Rate(RATE)}, shared=True))
TOPOLOGY: Final = Topology(clients=(ClientSpec(families=(4,), wifi=None),))
TRICKLE: Final = Rate(8000)
# Of a 32nd of the rate, and of the rest.
FLOOR: Final = 1 / 64
ALL: Final = 30 / 32 + FLOOR
HALF: Final = 15 / 32 + FLOOR
# What a client receives of a rate: the rate counts headers, and the meter, too, but not at the same link.
LEAST: Final = 0.8
MOST: Final = 1.1
JOINED_SECONDS: Final = 40.0
SECONDS: Final = 40.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_of(2, TOPOLOGY, tmp_path_factory.mktemp("fleet")) as built:
        yield built


@pytest.fixture
def worlds(fleet: Fleet) -> Iterator[list[ProxyWorld]]:
    """Both proxies, once both have a part of the rate."""
    fleet.server.cli("FLUSHALL")
    with fleet.serving(NETWORKS, {}) as running:

        def floors() -> list[float]:
            return [leases_of(world)["floor"] for world in running]

        eventually(lambda: floors() == [FLOOR] * 2, "both have a part", within=JOINED_SECONDS, seen=floors)
        yield running


def leases_of(world: ProxyWorld) -> dict[str, Any]:
    leases: dict[str, Any] = world.services.status()["daemon"]["leases"]
    return leases


def rates_of(world: ProxyWorld) -> set[float]:
    """What limited subflows have of the rate."""
    return {(subflow.rate or 0) / RATE for subflow in world.services.subflows() if subflow.kind == "limit"}


def wait_parts(worlds: list[ProxyWorld], *parts: float, within: float = SECONDS) -> None:
    """Wait until the client has these parts of the rate; it never has more than all."""

    def held() -> list[float]:
        rates = [max(rates_of(world), default=0.0) for world in worlds]
        assert sum(rates) <= 1, rates
        return rates

    eventually(lambda: held() == pytest.approx(parts, abs=0.01), f"{parts} of the rate", within=within, seen=held)


def wait_received(worlds: list[ProxyWorld], least: float) -> None:
    """Wait until the client receives at least this part of the rate, once TCP uses what it has; never more than all."""

    def received() -> float:
        rates = [receive_rates(world.lab.client, 2)["eth0"] / RATE for world in worlds]
        print("received", *(f"{rate:.2f}" for rate in rates), "of the rate")
        assert sum(rates) < MOST
        return sum(rates)

    eventually(lambda: received() > least, f"{least} of the rate received", within=SECONDS)


def trickle_on_second(worlds: list[ProxyWorld]) -> None:
    """The client wants all on the first proxy, and next to nothing on the second."""
    first, second = worlds
    first.download()
    second.download(rate_limit=TRICKLE)
    wait_parts(worlds, ALL, FLOOR)


def test_client_on_two_proxies_has_one_rate_where_it_asks_for_it(worlds: list[ProxyWorld]) -> None:
    first, second = worlds
    trickle_on_second(worlds)
    wait_received([first], LEAST)
    second.download()
    wait_parts(worlds, HALF, HALF)
    wait_received(worlds, LEAST)
    assert "6mbit over 2 proxies" in first.services.subflows()[0].reason
    first.abort()
    eventually(lambda: max(rates_of(second)) > 0.9, "the lease follows", SECONDS)


def test_killed_server_leaves_the_last_leases_and_then_a_part(fleet: Fleet, worlds: list[ProxyWorld]) -> None:
    trickle_on_second(worlds)
    fleet.server.stop()
    killed = time.monotonic()
    wait_parts(worlds, HALF, FLOOR)
    assert 5.0 < time.monotonic() - killed < 20.0
    wait_parts(worlds, HALF, HALF, within=45.0)
    assert all(leases_of(world)["out_of_reach"] for world in worlds)
    fleet.server.start()
    wait_parts(worlds, ALL, FLOOR, within=30.0)


def test_proxy_out_of_reach_has_its_part_and_the_other_leaves_it(worlds: list[ProxyWorld]) -> None:
    first, second = worlds
    trickle_on_second(worlds)
    second.proxy.ip(["link set fleet0 down"])
    wait_parts(worlds, HALF, HALF, within=60.0)
    assert not leases_of(first)["out_of_reach"]
    second.proxy.ip(["link set fleet0 up"])
    wait_parts(worlds, ALL, FLOOR, within=40.0)


def test_restarted_proxy_goes_on_with_its_lease(worlds: list[ProxyWorld]) -> None:
    first, _ = worlds
    trickle_on_second(worlds)
    first.daemon.stop()
    first.start_daemon()
    wait_parts(worlds, ALL, FLOOR, within=8.0)
