"""Steering holds capped subflows of downloads back: as backups at the proxy, of which the client knows nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, NamedTuple

import proxy_world
import pytest
from polling import eventually
from port_client import download_from, exchange
from proxy_world import FREE, MEGABYTE, Hosts, ProxyWorld, configured, ethernet_with, receive_rates, send_rates, serving
from second_interface import TWO_CLIENTS, second_interface_of_tun, send_small_pulses
from steered_subflows import (
    are_backups,
    are_regular,
    complaints,
    filters,
    priorities,
    steering_counters,
    subflows_at_proxy,
)
from test_pacing import longest_gap, watch

from mptcp_lab.download import Download, reset_subflows
from mptcp_lab.dropped_packets import dropped
from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.topology import ETHERNET, WIFI, Client, ClientSpec, Family, Topology
from mptcp_throttle.model import AccessNetwork, Per, RateKind
from mptcp_throttle.units import Rate

CAP: Final = 1e6
LEAST: Final = 0.5
"""Of the cap: beside other tests Wi-Fi is not always saturated, so that there are fewer pulses."""
TOPOLOGY: Final = Topology(clients=(ClientSpec(), ClientSpec("second")))
BEFORE_WIFI: Final = 30_000
"""More bytes than leave over Ethernet before Wi-Fi has joined."""

LOOK_MS: Final = 100
"""The time held back is known for the next moments, too, and is read a moment after the sockets."""

FOREIGN_PRIORITY: Final = 5
FOREIGN: Final = f"prio {FOREIGN_PRIORITY} protocol ip u32 match u32 0 0 flowid 1:1"
NONE: Final[dict[str, list[int]]] = {"eth0 ingress": [], "eth0 egress": []}
BOTH: Final = {"eth0 ingress": [76], "eth0 egress": [76]}


def wait_held(world: ProxyWorld, count: int | None = None) -> None:
    """Wait until the Ethernet subflows, `count` if given, are held back at the proxy."""
    eventually(lambda: are_backups(world, count=count), "held back", seen=lambda: subflows_at_proxy(world))


def wait_carried(client: Client, caps: int = 1) -> None:
    """Wait until the client's Ethernet carries its caps over 5 s, and never more."""

    def is_carried() -> bool:
        rate = receive_rates(client, 5)["eth0"]
        assert rate < 1.1 * caps * CAP
        return rate > LEAST * caps * CAP

    eventually(is_carried, "the cap carried")


def begin_held(world: ProxyWorld, client: Client | None = None) -> Download:
    """Begin a download that does not end; its Ethernet subflow is held back, and has a share."""
    download = world.download(client=client)
    world.wait_capped()
    wait_held(world)
    return download


def wait_settled_counters(world: ProxyWorld) -> None:
    """Wait until the daemon has read all that the programs have told MPTCP before now."""
    before = steering_counters(world)

    def is_settled() -> bool:
        nonlocal before
        earlier, before = before, steering_counters(world)
        return earlier == before

    time.sleep(1.5)
    eventually(is_settled, "the counters settled")


def at_once(*measure: Callable[[], dict[str, float]]) -> list[dict[str, float]]:
    """What these return, at the same time."""
    with ThreadPoolExecutor() as pool:
        return [running.result() for running in [pool.submit(each) for each in measure]]


@pytest.fixture
def held(world: ProxyWorld) -> ProxyWorld:
    begin_held(world)
    return world


# What the proxy and the client see


@pytest.mark.parametrize("family", [4, 6])
def test_capped_subflow_is_a_backup_of_which_the_client_knows_nothing(world: ProxyWorld, family: Family) -> None:
    client, proxy = world.lab.client, world.proxy
    of_client, of_proxy, refused = priorities(client), priorities(proxy), complaints(proxy)
    coalesced = proxy.counter("TcpExtTCPBacklogCoalesce")
    download = world.download(family=family)
    eventually(lambda: download.received > 20 * MEGABYTE, "20 MB received")
    wait_held(world)
    assert not are_backups(world, "wifi")

    with download.suspended():

        def all_heard() -> bool:
            told, heard = steering_counters(world), priorities(proxy).received - of_proxy.received
            unheard = told["as_backup"] + told["as_regular"] - heard
            # Two equal ACKs become one if they wait for the socket (net/ipv4/tcp_ipv4.c, tcp_add_backlog).
            return heard > 2 and 0 <= unheard <= proxy.counter("TcpExtTCPBacklogCoalesce") - coalesced

        eventually(all_heard, "all that MPTCP was told has arrived", seen=lambda: steering_counters(world))
    assert priorities(client) == of_client
    assert priorities(proxy).sent == of_proxy.sent
    assert complaints(proxy) == refused
    counters = steering_counters(world)
    assert (counters["not_told"], counters["not_steered"]) == (0, 0)


def test_policy_takes_no_subflow_that_is_held_back_for_a_backup(held: ProxyWorld) -> None:
    for _ in range(40):
        (ethernet,) = (subflow for subflow in held.services.subflows() if subflow.network == "ethernet")
        assert (ethernet.backup, ethernet.kind) == (False, "cap")
    assert held.paced() == 0


# Rates


def test_short_download_leaves_the_capped_network_alone(world: ProxyWorld) -> None:
    client, sizes = world.lab.client, []
    for _ in range(5):
        before = client.received_bytes("eth0")
        assert world.download(MEGABYTE).wait().intact
        sizes.append(client.received_bytes("eth0") - before)
    assert statistics.median(sizes) < BEFORE_WIFI, sizes


def test_short_downloads_are_counted_and_not_decided(world: ProxyWorld) -> None:
    wait_settled_counters(world)
    joined_before = world.proxy.counter("MPTcpExtMPJoinAckRx")
    for _ in range(20):
        assert world.download(100_000).wait().intact
    # A connection may be over before Wi-Fi has joined.
    subflows = 20 + world.proxy.counter("MPTcpExtMPJoinAckRx") - joined_before

    def closed() -> int:
        return sum(network["totals"]["closed"] for network in world.services.status()["networks"])

    eventually(lambda: closed() >= subflows, f"each of {subflows} subflows counted", seen=closed)
    eventually(lambda: steering_counters(world)["as_backup"] >= 16, "the programs held them back")
    decided = {decision["client_port"] for decision in world.services.ask("decisions", 200)["decisions"]}
    assert len(decided) <= 4, "a connection or two may have lasted on a busy machine"
    world.begin_capped()
    kinds = {decision["kind"] for decision in world.services.ask("decisions", 200)["decisions"]}
    assert "cap" in kinds


def test_capped_network_carries_its_cap_in_a_long_download(held: ProxyWorld) -> None:
    wait_carried(held.lab.client)


@pytest.mark.parametrize(("per", "caps"), [(Per.CLIENT, 1), (Per.SUBFLOW, 2)])
def test_subflows_of_one_share_carry_one_cap(hosts: Hosts, per: Per, caps: int) -> None:
    wifi, ethernet = WIFI_FIRST
    with serving(hosts, (wifi, replace(ethernet, per=per))) as world:
        world.download()
        world.download()
        world.wait_capped(2)
        wait_held(world, 2)
        wait_carried(world.lab.client, caps)


def test_clients_share_the_cap_of_a_network(hosts: Hosts) -> None:
    wifi, ethernet = WIFI_FIRST
    one, other = hosts.lab.clients.values()
    with serving(hosts, (wifi, replace(ethernet, per=Per.NETWORK))) as world:
        world.download(client=one)
        world.download(client=other)
        world.wait_capped(2)
        wait_held(world, 2)

        def is_shared() -> bool:
            rates = [rates["eth0"] for rates in at_once(lambda: receive_rates(one, 5), lambda: receive_rates(other, 5))]
            assert sum(rates) < 1.1 * CAP
            return sum(rates) > LEAST * CAP and min(rates) > 0.3 * CAP

        eventually(is_shared, "shared")


def test_client_with_a_small_receive_window_gets_its_cap(own_world: ProxyWorld) -> None:
    client = own_world.lab.client
    # Wi-Fi carries that in a twentieth of a second.
    client.sysctl({"net/ipv4/tcp_rmem": "4096 131072 600000"})
    begin_held(own_world)
    wait_carried(client)
    eventually(lambda: receive_rates(client, 5)["wlan0"] > 0.5 * WIFI.rate.bits_per_second, "Wi-Fi in use")


def test_rate_set_by_hand_reaches_a_running_download(held: ProxyWorld) -> None:
    held.services.cli("set-rate", "ethernet", "4mbit")
    eventually(lambda: 3e6 < receive_rates(held.lab.client, 3)["eth0"] < 4.4e6, "4 Mb/s for 3 s")


def test_both_directions_of_a_subflow_keep_their_caps(hosts: Hosts) -> None:
    client = hosts.lab.client
    send_small_pulses(client)
    with serving(hosts, ethernet_with({RateKind.UPLINK_CAP: Rate.parse("1mbit")})) as world:
        exchange(world)
        eventually(lambda: any(s.uplink_kind == "cap" for s in world.services.subflows()), "both capped")
        wait_held(world)
        eventually(lambda: send_rates(client, 1)["eth0"] < 1.5e6, "what was queued is sent")
        downlink, uplink = at_once(lambda: receive_rates(client, 8), lambda: send_rates(client, 8))
        # Ethernet carries the acknowledgments of the other direction, too.
        assert LEAST * CAP < downlink["eth0"] < 1.3 * CAP
        assert LEAST * CAP < uplink["eth0"] < 1.3 * CAP
        assert min(downlink["wlan0"], uplink["wlan0"]) > 5 * CAP


# What it costs


class Costs(NamedTuple):
    """Of the access networks, at the time of an observation: what they have carried while throttled, and held back."""

    at: float
    throttled_bytes: dict[str, int]
    held_back_ms: dict[str, int]

    @classmethod
    def at_present(cls, world: ProxyWorld) -> Costs:
        top = world.services.ask("top", 0, "name", "")
        totals = {network["name"]: network["totals"] for network in top["networks"]}
        throttled, held_back = (
            {name: counts[key] for name, counts in totals.items()} for key in ("ip_sent_throttled", "held_back_ms")
        )
        return cls(top["observed_at"], throttled, held_back)


def test_costs_of_a_long_download_are_the_cap_and_the_time_held_back(held: ProxyWorld) -> None:
    client = held.lab.client
    wait_carried(client)
    before = Costs.at_present(held)
    eventually(lambda: Costs.at_present(held).at > before.at + 10, "observed for 10 s")
    after = Costs.at_present(held)
    seconds = after.at - before.at
    rate = 8 * (after.throttled_bytes["ethernet"] - before.throttled_bytes["ethernet"]) / seconds
    assert LEAST * CAP < rate < 1.1 * CAP
    assert 0 < after.held_back_ms["ethernet"] - before.held_back_ms["ethernet"] <= 1000 * seconds + LOOK_MS
    assert after.throttled_bytes["wifi"] == after.held_back_ms["wifi"] == 0

    held.abort()
    address = str(client.address(ETHERNET, 4))

    def of_client() -> tuple[int, int]:
        periods = held.services.ask("history", address, 3600)["periods"]
        return sum(period["ip_sent_throttled"] for period in periods), sum(period["held_back_ms"] for period in periods)

    def is_all_of_the_network() -> bool:
        costs = Costs.at_present(held)
        return of_client() == (costs.throttled_bytes["ethernet"], costs.held_back_ms["ethernet"])

    eventually(is_all_of_the_network, "the client has all of it, also at the end", within=15)
    assert of_client() >= (after.throttled_bytes["ethernet"], after.held_back_ms["ethernet"])


def test_short_download_waits_for_no_subflow_that_is_held_back(world: ProxyWorld) -> None:
    for _ in range(3):
        assert world.download(MEGABYTE // 2).wait().intact

    def closed() -> list[int]:
        return [network["totals"]["closed"] for network in world.services.status()["networks"]]

    eventually(lambda: closed() == [3, 3], "all subflows counted", seen=closed, within=30)
    eventually(lambda: steering_counters(world)["as_backup"] > 0, "it was held back")
    assert Costs.at_present(world).held_back_ms == {"wifi": 0, "ethernet": 0}


# What the client itself asks for


def test_backup_that_the_client_asks_for_has_no_pulses_and_stays_one(own_world: ProxyWorld) -> None:
    begin_held(own_world)
    client, proxy = own_world.lab.client, own_world.proxy
    address = str(client.address(ETHERNET, 4))
    client.run("ip", "mptcp", "endpoint", "add", address, "dev", "eth0")
    client.run("ip", "mptcp", "endpoint", "change", address, "backup")
    eventually(lambda: any(s.backup for s in own_world.services.subflows()), "known as a backup")
    wait_settled_counters(own_world)
    before = steering_counters(own_world), client.received_bytes("eth0"), priorities(proxy)
    receive_rates(client, 3)
    assert (steering_counters(own_world), priorities(proxy)) == (before[0], before[2])
    assert client.received_bytes("eth0") - before[1] < BEFORE_WIFI
    assert are_backups(own_world)

    own_world.services.cli("set-rate", "ethernet", "unlimited")
    eventually(lambda: filters(proxy) == NONE, "the filters detached")
    assert are_backups(own_world)
    own_world.services.cli("reset-rate", "ethernet")
    eventually(lambda: filters(proxy) == BOTH, "the filters attached")
    assert are_backups(own_world)

    client.run("ip", "mptcp", "endpoint", "change", address, "nobackup")
    eventually(lambda: steering_counters(own_world)["pulses"] > 0, "pulses again")
    eventually(lambda: LEAST * CAP < receive_rates(client, 3)["eth0"] < 1.1 * CAP, "the cap carried again")
    client.run("ip", "mptcp", "endpoint", "change", address, "backup")
    eventually(lambda: any(s.backup for s in own_world.services.subflows()), "known as a backup")
    own_world.daemon.stop()
    assert are_backups(own_world)


def test_subflow_that_joins_as_a_backup_stays_one(own_world: ProxyWorld) -> None:
    client = own_world.lab.client
    client.run("ip", "mptcp", "endpoint", "add", str(client.address(ETHERNET, 4)), "dev", "eth0", "subflow", "backup")
    download_from(own_world, client.address(WIFI, 4), 45000)
    eventually(lambda: are_backups(own_world), "joined as a backup")
    eventually(lambda: len(own_world.services.subflows()) == 2, "both subflows known")
    before = client.received_bytes("eth0")
    receive_rates(client, 3)
    assert client.received_bytes("eth0") - before < BEFORE_WIFI
    assert steering_counters(own_world)["pulses"] == 0
    own_world.daemon.stop()
    assert are_backups(own_world)


# Ends of a cap


@pytest.mark.parametrize("end", ["set-rate ethernet unlimited", "pause", "stop"])
def test_subflow_is_regular_within_a_second_of_the_end_of_its_cap(held: ProxyWorld, end: str) -> None:
    if end == "stop":
        assert held.daemon.stop() == 0
    else:
        held.services.cli(*end.split())
    eventually(lambda: are_regular(held), "regular", within=1, seen=lambda: subflows_at_proxy(held))
    eventually(lambda: receive_rates(held.lab.client, 1)["eth0"] > FREE, "Ethernet in use")
    eventually(lambda: filters(held.proxy) == NONE, "the filters detached")
    assert "clsact" not in held.qdisc()


def test_idle_subflow_is_regular_within_a_second_of_a_pause(world: ProxyWorld) -> None:
    refused = complaints(world.proxy)
    with begin_held(world).suspended():
        eventually(lambda: receive_rates(world.lab.client, 0.5)["wlan0"] < 1e5, "nothing is sent any more")
        wait_held(world)
        world.services.cli("pause")
        eventually(lambda: are_regular(world), "regular", within=1, seen=lambda: subflows_at_proxy(world))
    assert complaints(world.proxy) == refused


def test_subflow_is_regular_within_a_second_of_wifi_loss(own_world: ProxyWorld) -> None:
    begin_held(own_world)
    document = own_world.download(8 * MEGABYTE)
    wait_held(own_world, 2)
    own_world.lab.client.leave(WIFI)
    eventually(lambda: are_regular(own_world), "regular", within=1, seen=lambda: subflows_at_proxy(own_world))
    eventually(lambda: receive_rates(own_world.lab.client, 0.5)["eth0"] > FREE, "Ethernet in use", within=3)
    result = document.wait()
    assert (result.exit_status, result.intact) == (0, True)


def gap_of_delivery(world: ProxyWorld, begin: Callable[[], Download]) -> float:
    """For how many seconds nothing arrives, at most, when Wi-Fi carries nothing any more without a word."""
    client, download = world.lab.client, begin()
    eventually(lambda: download.received > 6 * MEGABYTE, "6 MB received")
    with dropped(client, "INPUT", "-i", "wlan0"), dropped(client, "OUTPUT", "-o", "wlan0"):
        gap = longest_gap(watch(download, 3))
        eventually(lambda: receive_rates(client, 1)["eth0"] > FREE, "Ethernet in use")
    world.abort(download)
    return gap


def test_silent_end_of_wifi_interrupts_no_longer_than_without_us(hosts: Hosts) -> None:
    with configured(hosts) as world:
        without = [gap_of_delivery(world, world.download) for _ in range(4)]
    with serving(hosts) as world:
        steered = [gap_of_delivery(world, lambda: begin_held(world)) for _ in range(4)]
    # 0.2 to 0.7 s and 0.2 to 0.9 s on a busy machine with two processors; 1.2 s with paces alone.
    assert min(steered) < 1.5 * statistics.median(without), (steered, without)


# Beside a slow preferred path


def with_rates(wifi: str, cap: str) -> tuple[AccessNetwork, ...]:
    """Wi-Fi with this limit, and Ethernet with this cap."""
    preferred, capped = WIFI_FIRST
    return preferred.with_rates({RateKind.LIMIT: Rate.parse(wifi)}), capped.with_rates({RateKind.CAP: Rate.parse(cap)})


def test_cap_is_used_beside_a_preferred_path_of_three_times_its_rate(hosts: Hosts) -> None:
    with serving(hosts, with_rates("3mbit", "1mbit")) as world:
        world.download()
        world.wait_capped()
        wait_carried(world.lab.client)


def test_next_download_has_the_share_of_its_client_at_once(hosts: Hosts) -> None:
    with serving(hosts, with_rates("3mbit", "1mbit")) as world:
        begin_held(world)
        with world.daemon.suspended():
            world.abort()
            before = world.lab.client.received_bytes("eth0")
            world.download()
            eventually(lambda: world.lab.client.received_bytes("eth0") > before + MEGABYTE // 4, "Ethernet in use")


def test_cap_in_mid_transfer_lets_what_is_queued_leave(hosts: Hosts) -> None:
    with serving(hosts, with_rates("10mbit", "250kbit")) as world:
        world.services.ask("pause", None)
        download = world.download()
        eventually(lambda: len(world.services.subflows()) == 2, "two subflows")
        eventually(lambda: download.received > 20 * MEGABYTE, "20 MB received")
        world.services.ask("resume")
        world.wait_capped()
        # What is left of 100 kB in a queue of 250 kbit/s takes seconds, and all that was sent since waits for it.
        assert longest_gap(watch(download, 4)) < 1.0
        before = download.received
        time.sleep(3)
        assert download.received - before > 0.5 * 3 * 10e6 / 8


def test_what_is_queued_when_a_cap_begins_costs_its_share_nothing(hosts: Hosts) -> None:
    with serving(hosts, with_rates("10mbit", "1mbit")) as world:
        client = world.lab.client
        world.services.ask("pause", None)
        client.ip(["mptcp endpoint flush"])
        download = world.download()
        eventually(lambda: download.received > 3 * MEGABYTE, "3 MB received")
        client.ip([f"mptcp endpoint add {client.address(WIFI, 4)} dev wlan0 subflow"])
        eventually(lambda: len(world.services.subflows()) == 2, "two subflows")
        # Some 600 kB are queued, for which its share would pay for five seconds.
        world.services.ask("resume")
        world.wait_capped()
        eventually(lambda: receive_rates(client, 0.5)["eth0"] < CAP, "the queue has left")
        eventually(lambda: receive_rates(client, 1)["eth0"] > LEAST * CAP, "the cap carried", within=3)


# Without the daemon


def test_programs_go_on_deciding_when_the_daemon_is_killed(own_world: ProxyWorld) -> None:
    begin_held(own_world)
    own_world.daemon.kill()
    assert filters(own_world.proxy) == BOTH
    document = own_world.download(10 * MEGABYTE)
    wait_held(own_world, 2)
    assert document.wait().intact
    eventually(lambda: LEAST * CAP < receive_rates(own_world.lab.client, 3)["eth0"] < 1.1 * CAP, "the cap carried")
    own_world.lab.client.leave(WIFI)
    eventually(lambda: are_regular(own_world), "regular", seen=lambda: subflows_at_proxy(own_world))
    before = own_world.lab.client.received_bytes("eth0")
    # Its class of HTB is there until the next instance.
    eventually(lambda: own_world.lab.client.received_bytes("eth0") > before + MEGABYTE // 4, "Ethernet in use")


def test_next_instance_adopts_what_a_killed_one_has_held_back(held: ProxyWorld) -> None:
    held.daemon.kill()
    assert are_backups(held)
    held.start_daemon()
    held.wait_capped()
    assert not any(subflow.backup for subflow in held.services.subflows())
    eventually(lambda: steering_counters(held)["pulses"] > 0, "pulses")
    eventually(lambda: LEAST * CAP < receive_rates(held.lab.client, 3)["eth0"] < 1.1 * CAP, "the cap carried")
    assert filters(held.proxy) == BOTH
    held.services.cli("pause")
    eventually(lambda: are_regular(held), "regular", within=1, seen=lambda: subflows_at_proxy(held))


@pytest.mark.parametrize("after", ["--cleanup", "without steering"])
def test_what_a_killed_instance_held_back_is_freed_but_no_clients_backup(own_world: ProxyWorld, after: str) -> None:
    one, other = own_world.lab.clients.values()
    address = str(other.address(ETHERNET, 4))
    other.run("ip", "mptcp", "endpoint", "add", address, "dev", "eth0")
    downloads = [own_world.download(client=client) for client in (one, other)]
    own_world.wait_capped(2)
    wait_held(own_world, 2)
    other.run("ip", "mptcp", "endpoint", "change", address, "backup")
    eventually(lambda: sum(s.backup for s in own_world.services.subflows()) == 1, "one known as a backup")
    wait_settled_counters(own_world)
    own_world.daemon.kill()
    with downloads[0].suspended(), downloads[1].suspended():
        if after == "--cleanup":
            own_world.services.clean_up()
        else:
            own_world.services.configure_daemon(steering=False)
            own_world.start_daemon()
        assert filters(own_world.proxy) == NONE
        assert "clsact" not in own_world.qdisc()
        (port,) = (s.client_port for s in subflows_at_proxy(own_world) if s.is_backup)
        assert other.run("ss", "-tinH", "sport", "=", f":{port}", "and", "src", address).stdout


# Filters


@pytest.mark.parametrize(
    "change",
    [
        "filter del dev eth0 egress",
        "filter del dev eth0 ingress",
        "qdisc del dev eth0 clsact",
        f"filter add dev eth0 egress {FOREIGN}",
        f"filter add dev eth0 ingress {FOREIGN}",
    ],
)
def test_filter_that_another_program_removes_or_displaces_is_put_back(own_world: ProxyWorld, change: str) -> None:
    download = own_world.download()
    own_world.wait_capped()
    wait_held(own_world)
    before = download.received
    own_world.proxy.tc([change])
    eventually(
        lambda: "had removed or displaced a filter of steering" in own_world.daemon.log_text(), "noticed", within=2
    )
    direction, _, _ = change.partition(" prio")
    displaced = f"eth0 {direction.split()[-1]}"
    wanted = {name: [FOREIGN_PRIORITY - 2] if name == displaced and "add" in change else [76] for name in BOTH}
    assert filters(own_world.proxy) == wanted
    eventually(lambda: download.received > before + 10 * MEGABYTE, "data flows")
    assert LEAST * CAP < receive_rates(own_world.lab.client, 5)["eth0"] < 1.2 * CAP
    assert own_world.paced() == 0


def test_without_steering_capped_subflows_are_paced(hosts: Hosts) -> None:
    with serving(hosts, daemon={"steering": False}) as world:
        world.begin_paced()
        world.wait_settled()
        assert filters(world.proxy) == NONE
        assert are_regular(world)
        wait_carried(world.lab.client)


# Records


def test_record_of_an_earlier_subflow_on_the_same_ports_decides_nothing(own_world: ProxyWorld) -> None:
    client, address = own_world.lab.client, own_world.lab.client.address(ETHERNET, 4)
    client.run("ip", "mptcp", "endpoint", "add", str(address), "dev", "eth0")
    download_from(own_world, address, 45000)
    own_world.wait_capped()
    wait_held(own_world)
    client.run("ip", "mptcp", "endpoint", "change", str(address), "backup")
    eventually(lambda: any(s.backup for s in own_world.services.subflows()), "known as a backup")
    with own_world.daemon.suspended():  # nothing but the next packet can tell that the earlier subflow has ended
        reset_subflows(client)
        client.run("ip", "mptcp", "endpoint", "change", str(address), "nobackup")
        heard = priorities(own_world.proxy).received
        download_from(own_world, address, 45000)
        wait_held(own_world, 1)
        assert priorities(own_world.proxy).received > heard
    eventually(lambda: LEAST * CAP < receive_rates(client, 3)["eth0"] < 1.1 * CAP, "the cap carried")
    own_world.services.cli("pause")
    eventually(lambda: are_regular(own_world), "regular", within=1, seen=lambda: subflows_at_proxy(own_world))


# Interfaces


def test_capped_subflow_is_held_back_without_an_ethernet_header() -> None:
    both = ("eth0", "tun0")
    with (
        proxy_world.hosts(TWO_CLIENTS) as hosts,
        second_interface_of_tun(hosts),
        serving(hosts, interfaces=both) as world,
    ):
        second = world.lab.clients["second"]
        refused = complaints(world.proxy)
        begin_held(world, second)
        wait_carried(second)
        assert filters(world.proxy, both) == {f"{name} {way}": [76] for name in both for way in ("ingress", "egress")}
        assert complaints(world.proxy) == refused
        assert priorities(second) == (0, 0)
        world.services.cli("pause")
        eventually(lambda: are_regular(world), "regular", within=1, seen=lambda: subflows_at_proxy(world))
