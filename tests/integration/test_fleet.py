"""Three proxies with one budget of a client: all slow it where the budget ends, whatever happens to the server."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pytest
from fleet_world import fleet_of
from polling import eventually
from proxy_world import MEGABYTE, WITHOUT_CAP, receive_rates

from mptcp_lab.dropped_packets import dropped
from mptcp_lab.fleet_network import INTERFACE
from mptcp_lab.topology import ETHERNET, ClientSpec, Topology
from mptcp_lab.wall_clock import ServicesWithClock
from mptcp_throttle.model import Budget, Counting, Every, Per, RateKind, Stage
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fleet_world import Fleet
    from proxy_world import ProxyWorld

    from mptcp_lab.valkey_server import ValkeyServer

PROXIES: Final = 3
AMOUNT: Final = 30 * MEGABYTE
LIMIT: Final = Rate(1_000_000)
BUDGET: Final = Budget(AMOUNT, Per.CLIENT, Counting.BOTH, Every.MONTH, 1, None, (Stage(1.0, {RateKind.LIMIT: LIMIT}),))
NETWORKS: Final = (WITHOUT_CAP[0], replace(WITHOUT_CAP[1], budgets=(BUDGET,)))
# No program keeps the clock of the hosts right on which tests run.
DAEMON: Final[dict[str, object]] = {"wait_for_clock": False}
TOPOLOGY: Final = Topology(clients=(ClientSpec(families=(4,), wifi=None),))
FULL_RATE: Final = PROXIES * ETHERNET.rate.bytes_per_second
SLOW_RATE: Final = PROXIES * LIMIT.bytes_per_second
RIGHT_SECONDS: Final = 5.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_of(PROXIES, TOPOLOGY, tmp_path_factory.mktemp("fleet")) as built:
        yield built


@pytest.fixture
def worlds(fleet: Fleet) -> Iterator[list[ProxyWorld]]:
    fleet.server.cli("FLUSHALL")
    with fleet.serving(NETWORKS, DAEMON) as running:
        eventually(lambda: all(of_fleet(world)["age"] is not None for world in running), "all are connected")
        yield running


def of_fleet(world: ProxyWorld) -> Any:  # noqa: ANN401
    return world.services.status()["daemon"]["fleet"]


def budget(world: ProxyWorld) -> dict[str, Any]:
    nothing = {"used": 0, "used_elsewhere": 0, "stages_reached": 0}
    found: list[dict[str, Any]] = world.services.ask("budgets")["budgets"]
    return next(iter(found), nothing)


def own(world: ProxyWorld) -> int:
    shown = budget(world)
    return int(shown["used"]) - int(shown["used_elsewhere"])


def total(worlds: Sequence[ProxyWorld]) -> int:
    return sum(own(world) for world in worlds)


def are_slowed(worlds: Sequence[ProxyWorld]) -> bool:
    return all(budget(world)["stages_reached"] for world in worlds)


def seen(worlds: Sequence[ProxyWorld]) -> list[object]:
    return [(budget(world), of_fleet(world)) for world in worlds]


def use_a_quarter(worlds: Sequence[ProxyWorld]) -> None:
    """Begin a download on each, and wait until a quarter of the budget is used."""
    for world in worlds:
        world.download()
    eventually(lambda: total(worlds) > AMOUNT / 4, "a quarter of it is used")


def wait_right(worlds: Sequence[ProxyWorld]) -> None:
    """Wait until all have slowed their client, and know of nearly the same use."""
    eventually(lambda: are_slowed(worlds), "slowed on all", RIGHT_SECONDS, seen=lambda: seen(worlds))
    used = [budget(world)["used"] for world in worlds]
    assert max(used) - min(used) < 2 * FULL_RATE


def assert_not_slowed(worlds: Sequence[ProxyWorld]) -> None:
    assert all(receive_rates(world.lab.client, 1)["eth0"] > 3 * LIMIT.bits_per_second for world in worlds)


@contextmanager
def cut_off(world: ProxyWorld) -> Iterator[None]:
    """No packet passes between a proxy and the server; neither is told so."""
    rules = {"commands": ("iptables-legacy",)}
    with (
        dropped(world.proxy, "INPUT", "-i", INTERFACE, **rules),
        dropped(world.proxy, "OUTPUT", "-o", INTERFACE, **rules),
    ):
        yield


@contextmanager
def full(server: ValkeyServer) -> Iterator[None]:
    server.cli("CONFIG", "SET", "maxmemory", "1")
    try:
        yield
    finally:
        server.cli("CONFIG", "SET", "maxmemory", "0")


def test_client_is_slowed_where_its_budget_ends_on_all_proxies_together(worlds: list[ProxyWorld]) -> None:
    for world in worlds:
        world.download()
    eventually(lambda: total(worlds) > AMOUNT / 2, "half of it is used")
    assert not any(budget(world)["stages_reached"] for world in worlds)
    eventually(lambda: are_slowed(worlds), "slowed on all", seen=lambda: seen(worlds))
    slowed_at = time.monotonic()
    eventually(lambda: time.monotonic() > slowed_at + 1, "all that was carried is counted")
    beyond = total(worlds) - AMOUNT - SLOW_RATE * (time.monotonic() - slowed_at)
    print(f"beyond the budget: {beyond / MEGABYTE:.2f} MB, {beyond / FULL_RATE:.2f} s of the rate")
    assert -0.5 * FULL_RATE < beyond < 0.5 * FULL_RATE
    assert all(receive_rates(world.lab.client, 2)["eth0"] < 1.5 * LIMIT.bits_per_second for world in worlds)
    assert all(
        {proxy["name"] for proxy in of_fleet(world)["proxies"]} == {"proxy-1", "proxy-2", "proxy-3"} for world in worlds
    )
    explained = worlds[0].services.cli("explain", str(worlds[0].lab.client.address(ETHERNET, 4)), "ethernet").stdout
    assert "of it at other proxies" in explained


def proxies(world: ProxyWorld) -> dict[str, Any]:
    """All proxies that a proxy knows of, by name."""
    return {proxy["name"]: proxy for proxy in of_fleet(world)["proxies"]}


def parts(world: ProxyWorld) -> dict[str, int]:
    """What each proxy has counted of the budget, as this one knows it."""
    return {part["name"]: part["used"] for part in budget(world).get("used_by_proxy", ())}


def test_each_proxy_shows_all_and_the_part_of_each(worlds: list[ProxyWorld]) -> None:
    first, second, third = worlds
    for world in (first, second):
        world.download()
    eventually(lambda: parts(first).keys() == {"proxy-1", "proxy-2"}, "both have a part", seen=lambda: seen(worlds))
    shown = budget(first)
    by_proxy = {part["name"]: part["used"] for part in shown["used_by_proxy"]}
    assert sum(by_proxy.values()) == shown["used"]
    assert by_proxy["proxy-2"] == shown["used_elsewhere"] > 0
    for name in by_proxy:
        eventually(lambda name=name: proxies(third)[name]["sent_bps"] > 1e6, "it carries", seen=lambda: proxies(third))  # type: ignore[misc]
    assert {proxy["state"] for proxy in proxies(third).values()} == {"reachable"}
    assert proxies(third)["proxy-1"]["connections"] > 0
    address = str(first.lab.client.address(ETHERNET, 4))
    assert "of it at other proxies (by proxy: proxy-" in first.services.cli("explain", address, "ethernet").stdout
    assert "3 of 3 proxies" in third.services.cli("top", "--once").stdout
    third.daemon.kill()
    eventually(lambda: proxies(first)["proxy-3"]["state"] == "late", "silent for 10 s", 30, seen=lambda: proxies(first))
    assert proxies(first)["proxy-2"]["state"] == "reachable"
    lines = [line.split() for line in first.services.cli("status").stdout.splitlines()]
    assert [words[1] for words in lines if words[:1] == ["proxy-3"]] == ["late"]
    third.start_daemon()
    eventually(lambda: proxies(first)["proxy-3"]["state"] == "reachable", "back", 30, seen=lambda: proxies(first))


def test_idle_proxy_cuts_a_client_that_has_used_all_elsewhere(worlds: list[ProxyWorld]) -> None:
    first, *_, last = worlds
    address = str(first.lab.client.address(ETHERNET, 4))
    first.download()
    eventually(lambda: own(first) > 0, "anything is counted")
    first.services.cli("budget", "set-used", address, "100MB")
    eventually(lambda: bool(budget(first)["stages_reached"]), "slowed")
    last.download()
    eventually(lambda: bool(budget(last)["stages_reached"]), "slowed, too", within=5, seen=lambda: seen(worlds))
    # What it has carried until its use elsewhere was known.
    assert own(last) < 3 * ETHERNET.rate.bytes_per_second


def test_killed_server_slows_none_and_totals_are_right_after_its_return(fleet: Fleet, worlds: list[ProxyWorld]) -> None:
    use_a_quarter(worlds)
    fleet.server.stop()
    eventually(lambda: all(of_fleet(world)["problem"] for world in worlds), "it is missed", seen=lambda: seen(worlds))
    known = [budget(world)["used_elsewhere"] for world in worlds]
    assert_not_slowed(worlds)
    assert [budget(world)["used_elsewhere"] for world in worlds] == known
    assert "fleet" in worlds[0].services.cli("doctor", check=False).stdout
    eventually(lambda: total(worlds) > AMOUNT, "all of it is used")
    fleet.server.start()
    wait_right(worlds)


def test_proxy_cut_off_slows_none_and_is_right_after_its_return(worlds: list[ProxyWorld]) -> None:
    first, second, third = worlds
    use_a_quarter(worlds)
    with cut_off(second):
        eventually(lambda: "does not answer" in str(of_fleet(second)["problem"]), "it is missed")
        known = budget(second)["used_elsewhere"]
        assert_not_slowed(worlds)
        assert budget(second)["used_elsewhere"] == known < own(first) + own(third)
        assert not any(of_fleet(world)["problem"] for world in (first, third))
        eventually(lambda: total(worlds) > AMOUNT, "all of it is used")
    wait_right(worlds)


def test_slow_server_slows_none_and_totals_are_right_after_its_return(fleet: Fleet, worlds: list[ProxyWorld]) -> None:
    use_a_quarter(worlds)
    with fleet.server.process.suspended():
        eventually(lambda: all("does not answer" in str(of_fleet(world)["problem"]) for world in worlds), "it is late")
        assert_not_slowed(worlds)
        eventually(lambda: total(worlds) > AMOUNT, "all of it is used")
    wait_right(worlds)


def test_full_server_slows_none_and_totals_are_right_after_its_return(fleet: Fleet, worlds: list[ProxyWorld]) -> None:
    use_a_quarter(worlds)
    with full(fleet.server):
        eventually(lambda: all("OOM" in str(of_fleet(world)["problem"]) for world in worlds), "it is full")
        assert_not_slowed(worlds)
        eventually(lambda: total(worlds) > AMOUNT, "all of it is used")
    wait_right(worlds)


def test_clock_of_one_proxy_that_is_minutes_wrong_changes_nothing(worlds: list[ProxyWorld]) -> None:
    first, *_ = worlds
    use_a_quarter(worlds)
    # In the same month.
    minutes = 5 if datetime.now().astimezone().day < 15 else -5
    assert isinstance(first.services, ServicesWithClock)
    first.services.set_ahead(60 * minutes, ["mptcp-throttled"])
    assert not any(of_fleet(world)["problem"] for world in worlds)
    assert_not_slowed(worlds)
    eventually(lambda: total(worlds) > AMOUNT, "all of it is used")
    wait_right(worlds)


def test_restarted_proxy_goes_on_from_its_own_total(worlds: list[ProxyWorld]) -> None:
    first, second, _ = worlds
    for world in (first, second):
        world.download()
    eventually(lambda: total(worlds) > AMOUNT / 3, "a third of it is used")
    second.daemon.kill()
    second.start_daemon()
    eventually(lambda: are_slowed([first, second]), "slowed on both", seen=lambda: seen(worlds))
    assert total(worlds) < AMOUNT + 2 * FULL_RATE


def test_proxy_that_restarts_while_the_server_is_away_knows_the_others(fleet: Fleet, worlds: list[ProxyWorld]) -> None:
    first, *_, last = worlds
    for world in (first, last):
        world.download()
    eventually(lambda: budget(last)["used_elsewhere"] > 0, "it knows of the other", seen=lambda: seen(worlds))
    for world in (first, last):
        world.abort()
    fleet.server.stop()
    eventually(lambda: of_fleet(last)["problem"] is not None, "it is missed", seen=lambda: seen(worlds))
    assert "fleet-away" in last.services.cli("events").stdout
    known = budget(last)["used_elsewhere"]
    last.daemon.stop()
    last.start_daemon()
    eventually(lambda: budget(last)["used_elsewhere"] == known, "it still does", seen=lambda: seen(worlds))
    assert of_fleet(last)["age"] is not None
    fleet.server.start()
    eventually(lambda: "fleet-back" in last.services.cli("events").stdout, "it is back")
