"""The headline: the capped path carries its cap, the preferred path the rest, and the cap goes when it must."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import pytest
from polling import eventually
from proxy_world import FREE, MEGABYTE, Hosts, ProxyWorld, proxy_world, receive_rates, serving

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.topology import WIFI, ClientSpec, Topology
from mptcp_throttle.model import Per

CLIENTS = (
    ClientSpec("active"),
    ClientSpec("backup", wifi="backup"),
    ClientSpec("six", families=(6,)),
    ClientSpec("lone", wifi=None),
)


def test_capped_path_carries_its_cap_and_wifi_the_rest(world: ProxyWorld, before: dict[str, str]) -> None:
    download = world.download()
    world.wait_settled()
    windows = [receive_rates(world.lab.client, 4) for _ in range(3)]
    ethernet = [rates["eth0"] for rates in windows]
    assert max(ethernet) < 1.25e6
    # Not in every window: the MPTCP scheduler does not know the cap, and one path may wait seconds for the other.
    assert statistics.median(ethernet) > 0.75e6
    assert statistics.mean(rates["wlan0"] for rates in windows) > statistics.mean(ethernet)
    world.abort(download)
    world.wait_restored()
    assert kernel_state(world.proxy) == before


def test_cap_follows_a_join_within_50_ms_at_the_median(world: ProxyWorld) -> None:
    latencies = []
    for _ in range(11):
        download = world.download()
        (capped,) = world.wait_capped()
        assert capped.join_to_cap is not None
        latencies.append(capped.join_to_cap)
        world.abort(download)
        eventually(lambda: not world.services.subflows(), "all subflows ended")
    assert 0 < statistics.median(latencies) < 0.050


def test_cap_is_lifted_within_a_second_of_wifi_loss(own_world: ProxyWorld) -> None:
    client = own_world.lab.client
    endless = own_world.download()
    own_world.wait_capped()
    own_world.wait_restrained()
    document = own_world.download(10 * MEGABYTE)
    own_world.wait_capped(2)
    client.leave(WIFI)
    eventually(lambda: not own_world.capped(), "caps lifted", within=1)
    eventually(lambda: own_world.assignments() == [], "no socket in a class", within=1)
    eventually(lambda: not own_world.restrained(), "no subflow paced or held back", within=1)
    result = document.wait()
    assert (result.exit_status, result.intact) == (0, True)
    eventually(lambda: receive_rates(client, 3)["eth0"] > FREE, "Ethernet in use")
    own_world.abort(endless)
    own_world.wait_restored()


def test_cap_is_lifted_while_wifi_loses_everything_in_silence(world: ProxyWorld) -> None:
    wifi, client = str(world.lab.topology.wifi.v4), world.lab.client
    drop = [("FORWARD", direction, wifi, "-j", "DROP") for direction in ("-s", "-d")]
    world.begin_capped()
    eventually(lambda: receive_rates(client, 0.5)["wlan0"] > 10e6, "Wi-Fi in use")
    for rule in drop:
        world.lab.router.run("iptables-legacy", "-A", *rule)
    eventually(lambda: not world.capped(), "cap lifted", within=4)
    assert len(world.services.subflows()) == 2
    for rule in drop:
        world.lab.router.run("iptables-legacy", "-D", *rule)
    world.wait_capped()


def test_lost_path_is_shown_until_the_client_opens_a_subflow(own_world: ProxyWorld) -> None:
    client, services = own_world.lab.client, own_world.services

    def one_path_since() -> float | None:
        (connection,) = services.cli_json("connections")["connections"]
        since: float | None = connection["one_path_since"]
        return since

    own_world.begin_capped()
    address, _, identifier, *_ = client.run("ip", "mptcp", "endpoint").stdout.split()
    assert one_path_since() is None
    removed = time.time()
    client.ip([f"mptcp endpoint delete id {identifier}"])
    eventually(lambda: len(services.subflows()) == 1, "Wi-Fi lost")
    lost = time.time()
    eventually(lambda: one_path_since() is not None, "the hint shown", within=60)
    assert time.time() - removed >= 30
    since = one_path_since()
    assert since is not None
    assert removed <= since <= lost
    moment = time.strftime("%H:%M", time.localtime(since))
    assert f"one path since {moment}: the client must open a new subflow" in services.cli("connections").stdout
    client.ip([f"mptcp endpoint add {address} dev {WIFI.interface} id {identifier} subflow"])
    own_world.wait_capped()
    assert one_path_since() is None
    assert "one path" not in services.cli("connections").stdout


def test_backup_path_justifies_no_cap() -> None:
    with proxy_world(Topology(clients=(ClientSpec(wifi="backup"),))) as world:
        download = world.download()
        eventually(lambda: any(subflow.backup for subflow in world.services.subflows()), "Wi-Fi joined as backup")
        received = download.received
        eventually(lambda: download.received > received + MEGABYTE, "the download in progress")
        assert world.capped() == []
        assert "htb" not in world.qdisc()


@pytest.mark.parametrize("steering", [True, False])
@pytest.mark.parametrize("per", Per)
def test_plain_tcp_of_a_capped_client_is_not_touched(hosts: Hosts, per: Per, steering: bool) -> None:
    networks = [replace(network, per=per) for network in WIFI_FIRST]
    with serving(hosts, networks, {"steering": steering}) as world:
        (capped,) = world.begin_settled()
        world.wait_restrained()
        plain = world.download(3 * MEGABYTE, mptcp=False)
        (assignment,) = world.assignments()
        assert (assignment.client, assignment.client_port) == (capped.client, capped.client_port)
        eventually(lambda: plain.received > MEGABYTE, "plain TCP in progress")
        assert world.paced() == (0 if steering else 1)
        world.wait_restrained()
        result = plain.wait()
        assert result.local_port != capped.client_port
        assert world.assignments() == [assignment]
        assert result.goodput > FREE


def test_each_client_is_capped_by_its_own_connection_alone() -> None:
    with proxy_world(Topology(clients=CLIENTS)) as world:
        clients = world.lab.clients
        downloads = [world.download(client=host, family=6 if name == "six" else 4) for name, host in clients.items()]
        eventually(lambda: len(world.services.subflows()) == 7, "all subflows known")
        world.wait_capped(2)
        ethernet = {
            name: str(host.address(world.lab.topology.ethernet, 6 if name == "six" else 4))
            for name, host in clients.items()
        }
        assert {subflow.client for subflow in world.capped()} == {ethernet["active"], ethernet["six"]}
        assert len({subflow.token for subflow in world.services.subflows()}) == 4
        in_classes = {ethernet["active"], ethernet["six"]}
        eventually(lambda: {each.client for each in world.assignments()} == in_classes, "both in their classes")
        world.abort(downloads[0])
        world.wait_capped(1)


@pytest.mark.parametrize("world", [{"steering": True}, {"steering": False}], indirect=True, ids=["steering", "paces"])
def test_rate_set_by_hand_reaches_a_running_transfer_in_place(world: ProxyWorld) -> None:
    world.begin_settled()
    qdiscs = world.qdisc()
    changed = world.services.cli_json("set-rate", "ethernet", "5mbit")
    cap = changed["rates"]["downlink"]["cap"]
    assert (cap["rate"], cap["configured"], cap["reason"]) == ("5mbit", "1mbit", "by hand, until reset")
    assert changed["format"] == 1
    if world.services.status()["daemon"]["features"]["steering"]["problem"] is not None:
        pace = f"/{round(5e6 * 0.94)}bps"
        eventually(lambda: pace in world.proxy.run("ss", "-tinH").stdout, f"a pace of {pace}")
    # TCP takes some seconds to find the new rate.
    eventually(lambda: 4.5e6 < receive_rates(world.lab.client, 3)["eth0"] < 5.5e6, "5 Mb/s for 3 s")
    asked = time.monotonic()
    world.services.cli("set-rate", "ethernet", "8mbit", "--for", "3s")
    assert world.capped()[0].rate == 8_000_000
    eventually(lambda: world.capped()[0].rate == 1_000_000, "the rate of the configuration once it expired")
    assert time.monotonic() - asked >= 3
    world.services.cli("set-rate", "ethernet", "8mbit")
    assert world.capped()[0].rate == 8_000_000
    world.services.cli("reset-rate", "ethernet")
    assert world.capped()[0].rate == 1_000_000
    assert world.qdisc() == qdiscs
    world.services.cli("set-rate", "ethernet", "unlimited")
    eventually(lambda: not world.restrained(), "no subflow paced or held back", within=1)
