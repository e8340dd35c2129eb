"""Budgets: what is counted, what a spent budget does to running transfers, and what survives the daemon's end."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
from polling import eventually
from proxy_world import MEGABYTE, WITHOUT_CAP, Hosts, ProxyWorld, attended, receive_rates, serving, unique

from mptcp_lab.topology import ClientSpec, Topology
from mptcp_lab.wall_clock import ServicesWithClock
from mptcp_throttle.model import AccessNetwork, Budget, Counting, Every, Per, RateKind, Stage
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from mptcp_lab.topology import Client

TOPOLOGY: Final = Topology(clients=(ClientSpec("one"), ClientSpec("two")))
AMOUNT: Final = 6 * MEGABYTE
CAP: Final = Rate(1_000_000)
CAPPED: Final = Stage(1.0, {RateKind.CAP: CAP})
BUDGET: Final = Budget(AMOUNT, Per.CLIENT, Counting.BOTH, Every.DAY, 0, 0.8, (CAPPED,))
# No program keeps the clock of the hosts right on which tests run.
DAEMON: Final = {"wait_for_clock": False}


def with_budgets(*budgets: Budget) -> tuple[AccessNetwork, ...]:
    """Wi-Fi, and Ethernet without a cap, but with these budgets."""
    wifi, ethernet = WITHOUT_CAP
    return wifi, replace(ethernet, budgets=budgets)


def budgets(world: ProxyWorld) -> dict[str | None, dict[str, Any]]:
    """The budgets by client, None being the network's."""
    return {budget["client"]: budget for budget in world.services.cli_json("budgets")["budgets"]}


def address(world: ProxyWorld, client: Client) -> str:
    return str(client.address(world.lab.topology.ethernet, 4))


def caps(world: ProxyWorld) -> dict[str, int | None]:
    """The rates of the capped subflows, by address."""
    return {subflow.client: subflow.rate for subflow in world.capped()}


@pytest.fixture
def world(hosts: Hosts) -> Iterator[ProxyWorld]:
    with serving(hosts, with_budgets(BUDGET), DAEMON) as running:
        yield running


def test_running_download_is_slowed_by_a_spent_budget_until_more_is_added(world: ProxyWorld) -> None:
    one, two = world.lab.clients.values()
    first, second = address(world, one), address(world, two)
    world.download(client=one)
    world.wait_settled()
    spent = budgets(world)[first]
    assert spent["used"] >= AMOUNT
    allowed = {"direction": "downlink", "kind": "cap", "rate": "1mbit"}
    assert (spent["left"], spent["stages_reached"], spent["allowed"]) == (0, 1, [allowed])
    assert receive_rates(one, 4)["eth0"] < 1.25e6
    (subflow,) = world.capped()
    assert subflow.reason == "wifi is live; cap: 6 MB per day used"
    told = [event for event in world.services.ask("events")["events"] if event["kind"].startswith("budget-")]
    assert [(event["kind"], event["client"]) for event in told] == [("budget-warning", first), ("budget-spent", first)]
    form = re.compile(rf"ethernet {first}: (\S+) MB used of the budget of 6 MB per client and day \(\S+ %\)(.*)")
    warning, end = (form.fullmatch(event["text"]) for event in told)
    assert warning is not None
    assert end is not None
    # Ethernet carries 1.25 MB/s; the daemon looks at the sockets every 0.4 s, and more often near the end.
    assert 4.8 <= float(warning[1]) < 6 <= float(end[1]) < 7
    assert (warning[2], end[2]) == ("", ": at most cap 1mbit")
    assert warning[0] in world.daemon.log_text()
    explained = world.services.cli("explain", first, "ethernet").stdout
    # In the last hour of the day it says how long that is.
    assert re.search(r"cap: 1mbit \(6 MB per day used, (until 00:00|for \d+ s)\); otherwise none", explained)
    world.download(4 * MEGABYTE, client=two)  # less than the budget, however late it is looked at
    eventually(lambda: budgets(world).get(second, {"used": 0})["used"] > 0.5e6, "the other client's own budget")
    assert caps(world) == {first: CAP.bits_per_second}

    answer = world.services.cli_json("budget", "add", first, "1GB")
    (added,) = answer["budgets"]
    assert added["left"] > 0.9e9
    eventually(lambda: first not in caps(world), "freed")
    eventually(lambda: receive_rates(one, 1)["eth0"] > 3e6, "Ethernet beyond the cap")


def test_tcp_without_mptcp_counts_and_is_not_throttled(hosts: Hosts) -> None:
    stage = Stage(1.0, {RateKind.LIMIT: CAP})
    with serving(hosts, with_budgets(replace(BUDGET, per=Per.NETWORK, stages=(stage,))), DAEMON) as world:
        size = 8 * MEGABYTE
        world.download(size, mptcp=False).wait()
        eventually(lambda: budgets(world)[None]["used"] > size, "all of it counted")
        spent = budgets(world)[None]
        # With headers, acknowledgments, and what was sent again.
        assert spent["used"] == spent["used_without_mptcp"] < 1.3 * size
        assert spent["stages_reached"] == 1
        world.download()
        subflows = world.services.subflows
        eventually(lambda: [each.rate for each in subflows() if each.kind == "limit"] == [CAP.bits_per_second], "limit")


def test_short_tcp_connection_counts_whole_while_caps_are_paused(hosts: Hosts) -> None:
    with serving(hosts, with_budgets(replace(BUDGET, per=Per.NETWORK)), DAEMON) as world:
        world.services.cli("pause")
        # Each ends before the daemon looks at it, most of them: what it has carried is known from its end alone.
        for _ in range(15):
            world.download(MEGABYTE // 10, mptcp=False).wait()
        eventually(lambda: budgets(world)[None]["used"] > 1.5 * MEGABYTE, "all of it counted")


def test_killed_daemon_counts_nothing_twice_and_keeps_what_is_spent(world: ProxyWorld) -> None:
    one, *_ = world.lab.clients.values()
    first = address(world, one)
    world.download(client=one)
    world.wait_settled()
    world.services.cli("budget", "set-used", first, "100MB")
    for _ in range(5):
        world.daemon.kill()
        world.start_daemon()
        assert caps(world) == {first: CAP.bits_per_second}
    used = budgets(world)[first]["used"]
    assert 100 * MEGABYTE <= used < 110 * MEGABYTE
    world.services.cli("budget", "reset", first)
    eventually(lambda: first not in caps(world), "freed")


def test_rolling_budget_frees_when_its_use_is_long_ago(hosts: Hosts) -> None:
    networks = with_budgets(replace(BUDGET, amount=50 * MEGABYTE, rolling=True))
    services = ServicesWithClock(hosts.lab.proxy, networks, name=unique("clock"), daemon=DAEMON)
    with attended(hosts, services) as world, services:
        one, *_ = world.lab.clients.values()
        first = address(world, one)
        world.download(client=one)
        eventually(lambda: first in budgets(world), "anything used")
        world.services.cli("budget", "set-used", first, "100MB")
        world.wait_settled()
        spent = budgets(world)[first]
        assert (spent["rolling"], spent["stages_reached"]) == (True, 1)
        end = spent["period"]["end"]
        # An hour after the other, as time passes: nothing confirms this clock, which must not jump.
        for hours in range(1, 27):
            assert caps(world) == {first: CAP.bits_per_second}
            services.set_ahead(3600 * hours)
            eventually(lambda: budgets(world).get(first, spent)["period"]["end"] >= end + 3600 * hours, "an hour later")  # noqa: B023
            if "no stage any more" in world.daemon.log_text():
                break
        assert hours in {24, 25}


def test_new_period_frees_a_running_download_and_none_begins_twice(hosts: Hosts) -> None:
    networks = with_budgets(replace(BUDGET, amount=3 * MEGABYTE))
    services = ServicesWithClock(hosts.lab.proxy, networks, name=unique("clock"), daemon=DAEMON)
    with attended(hosts, services) as world, services:
        one, *_ = world.lab.clients.values()
        first = address(world, one)
        world.download(client=one)
        world.wait_settled()
        before = budgets(world)[first]
        services.set_ahead(86400)
        eventually(lambda: not caps(world), "freed")
        eventually(lambda: caps(world) == {first: CAP.bits_per_second}, "spent again", within=20)
        services.set_ahead(0)
        eventually(lambda: budgets(world)[first]["used"] > 3.1 * MEGABYTE, "more used")
        again = budgets(world)[first]
        assert again["period"]["start"] == before["period"]["end"]
        assert caps(world) == {first: CAP.bits_per_second}
        begun = "ethernet: budget of 3 MB per client and day begins again; 1 are freed"
        assert world.daemon.log_text().count(begun) == 1
