"""Kernel programs count what is left of a budget, and go over to its next stage by themselves."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
from polling import eventually
from proxy_world import MEGABYTE, WITHOUT_CAP, Hosts, ProxyWorld, hosts, receive_rates, serving

from mptcp_lab.topology import ETHERNET, Topology
from mptcp_throttle.model import AccessNetwork, Budget, Counting, Every, Per, RateKind, Stage
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

AMOUNT: Final = 40 * MEGABYTE
ETHERNET_RATE: Final = Rate(100_000_000)
SLOW: Final = Rate(1_000_000)
DAEMON: Final = {"wait_for_clock": False}
KIND: Final = pytest.mark.parametrize("kind", [RateKind.CAP, RateKind.LIMIT], ids=str)


def with_stage(kind: RateKind) -> tuple[AccessNetwork, ...]:
    """Wi-Fi, and Ethernet without a cap, but with a budget of each client that ends in a rate of this kind."""
    wifi, ethernet = WITHOUT_CAP
    budget = Budget(AMOUNT, Per.CLIENT, Counting.BOTH, Every.DAY, 0, None, (Stage(1.0, {kind: SLOW}),))
    return wifi, replace(ethernet, budgets=(budget,))


@pytest.fixture(scope="module", name="fast")
def fast_hosts() -> Iterator[Hosts]:
    with hosts(Topology(ethernet=replace(ETHERNET, rate=ETHERNET_RATE))) as built:
        yield built


def budget(world: ProxyWorld) -> Any:  # noqa: ANN401
    (known,) = world.services.ask("budgets")["budgets"] or [{"used": 0, "stages_reached": 0}]
    return known


def wait_charged(world: ProxyWorld) -> None:
    """Wait until the programs count what is left of the budget.

    `budgets` has what a look has counted some milliseconds before the programs know what is left. They know it before
    the next look counts.
    """
    looks: set[int] = set()

    def is_counted() -> bool:
        looks.add(budget(world)["used"])
        return len(looks - {0}) == 2

    eventually(is_counted, "counted by two looks", seen=lambda: looks)
    assert max(looks) < AMOUNT, "the stage is to be reached after this"


@KIND
def test_client_uses_hardly_more_than_its_budget(fast: Hosts, kind: RateKind) -> None:
    with serving(fast, with_stage(kind), DAEMON) as world:
        world.download()
        eventually(lambda: budget(world)["stages_reached"] == 1, "the budget used")
        assert budget(world)["used"] - AMOUNT < 256 * 1024 + 2 * SLOW.bytes_per_second
        eventually(lambda: [each.rate for each in world.services.subflows() if each.kind] == [10**6], "throttled")


@KIND
def test_client_is_slowed_although_the_daemon_stands_still(fast: Hosts, kind: RateKind) -> None:
    with serving(fast, with_stage(kind), DAEMON) as world:
        world.download()
        wait_charged(world)
        with world.daemon.suspended():
            time.sleep(4)  # 50 MB at the rate of the link
            assert receive_rates(world.lab.client, 2)["eth0"] < 2 * SLOW.bits_per_second
        eventually(lambda: budget(world)["stages_reached"] == 1, "the budget used")
        assert budget(world)["used"] - AMOUNT < MEGABYTE
        world.services.cli("budget", "add", str(world.lab.client.address(ETHERNET, 4)), "1GB")
        eventually(lambda: receive_rates(world.lab.client, 1)["eth0"] > 10e6, "free")
