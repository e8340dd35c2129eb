"""The headline: the capped path carries its cap, the preferred path the rest, and the cap goes when it must."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import pytest
from bench import MEGABYTE, Bench, bench, eventually

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.meter import PathMeter
from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.topology import WIFI, ClientSpec, Topology
from mptcp_throttle.model import Per

INTERFACES = ("eth0", "wlan0")


def test_the_capped_path_carries_its_cap_and_wifi_the_rest(work: Bench) -> None:
    before = kernel_state(work.lab.proxy)
    with PathMeter(work.lab.client.namespace, INTERFACES) as meter:
        download = work.download(200 * MEGABYTE)
        work.wait_capped()
        start = time.monotonic() + 1  # what the router had queued at 10 Mb/s arrives
        time.sleep(1 + 3 * 5)
        assert download.running
        work.abort(download)
        series = meter.series()
    ethernet = [series.rate("eth0", window, window + 5) for window in (start, start + 5, start + 10)]
    assert max(ethernet) < 1.1e6
    # Not in every window: the scheduler does not see the cap, and for seconds one path may wait for the other.
    assert statistics.median(ethernet) > 0.9e6
    assert series.rate("wlan0", start, start + 15) > statistics.mean(ethernet)
    eventually(lambda: work.services.status()["daemon"]["qdisc"] == "original", "original qdisc back")
    assert kernel_state(work.lab.proxy) == before


def test_the_whole_document_arrives_intact_while_its_path_is_capped(work: Bench) -> None:
    result = work.download(10 * MEGABYTE).wait()
    assert (result.exit_status, result.intact) == (0, True)


def test_from_join_to_cap_takes_less_than_50_ms_at_the_median(work: Bench) -> None:
    latencies = []
    for _ in range(11):
        download = work.download()
        (capped,) = work.wait_capped()
        assert capped.join_to_cap is not None
        latencies.append(capped.join_to_cap)
        work.abort(download)
        eventually(lambda: not work.services.subflows(), "all subflows ended")
    assert 0 < statistics.median(latencies) < 0.050


def test_when_wifi_ends_the_cap_is_lifted_within_a_second_and_the_download_completes(work: Bench) -> None:
    with PathMeter(work.lab.client.namespace, INTERFACES) as meter:
        download = work.download(20 * MEGABYTE)
        work.wait_capped()
        time.sleep(2)
        left = time.monotonic()
        work.lab.client.leave(WIFI)
        eventually(lambda: not work.capped(), "cap lifted", within=1)
        assert work.marks() == []
        result = download.wait()
        assert (result.exit_status, result.intact) == (0, True)
        assert meter.series().rate("eth0", left + 3, left + 6) > 5e6
    eventually(lambda: work.services.status()["daemon"]["qdisc"] == "original", "original qdisc back")


def test_when_wifi_dies_in_silence_the_cap_is_lifted_until_it_is_back(work: Bench) -> None:
    wifi = work.lab.topology.wifi.v4
    drop = [("FORWARD", direction, str(wifi), "-j", "DROP") for direction in ("-s", "-d")]
    download = work.download(200 * MEGABYTE)
    work.wait_capped()
    time.sleep(2)
    for rule in drop:
        work.lab.router.run("iptables-legacy", "-A", *rule)
    eventually(lambda: not work.capped(), "cap lifted", within=4)
    assert len(work.services.subflows()) == 2
    for rule in drop:
        work.lab.router.run("iptables-legacy", "-D", *rule)
    eventually(lambda: len(work.capped()) == 1, "capped again", within=20)
    work.abort(download)


def test_a_backup_path_relieves_nothing_so_nothing_is_capped() -> None:
    with bench(Topology(clients=(ClientSpec(wifi="backup"),))) as work:
        download = work.download()
        eventually(lambda: any(subflow.backup for subflow in work.services.subflows()), "Wi-Fi joined as backup")
        time.sleep(1)
        assert work.capped() == []
        assert "htb" not in work.qdisc()
        download.stop()


@pytest.mark.parametrize("per", Per)
def test_a_plain_tcp_download_of_a_capped_client_is_not_touched(per: Per) -> None:
    with bench(networks=[replace(network, per=per) for network in WIFI_FIRST]) as work:
        mptcp = work.download()
        (capped,) = work.wait_capped()
        plain = work.download(3 * MEGABYTE, mptcp=False)
        (mark,) = work.marks()
        assert (mark.client, mark.client_port) == (capped.client, capped.client_port)
        result = plain.wait()
        assert result.local_port != capped.client_port
        assert work.marks() == [mark]
        assert result.goodput > 3e6
        mptcp.stop()


def test_each_client_is_treated_by_its_own_connection() -> None:
    clients = (
        ClientSpec("active"),
        ClientSpec("backup", wifi="backup"),
        ClientSpec("six", families=(6,)),
        ClientSpec("lone", wifi=None),
    )
    with bench(Topology(clients=clients)) as work:
        hosts = work.lab.clients
        downloads = [work.download(client=host, family=6 if name == "six" else 4) for name, host in hosts.items()]
        eventually(lambda: len(work.services.subflows()) == 7, "all subflows known")
        work.wait_capped(2)
        ethernet = {
            name: str(host.address(work.lab.topology.ethernet, 6 if name == "six" else 4))
            for name, host in hosts.items()
        }
        assert {subflow.client for subflow in work.capped()} == {ethernet["active"], ethernet["six"]}
        assert len({subflow.token for subflow in work.services.subflows()}) == 4
        assert {mark.client for mark in work.marks()} == {ethernet["active"], ethernet["six"]}
        work.abort(downloads[0], hosts["active"])
        work.wait_capped(1)
        for download in downloads[1:]:
            download.stop()


def test_a_rate_change_reaches_a_running_transfer_without_swapping_the_qdisc(work: Bench) -> None:
    with PathMeter(work.lab.client.namespace, INTERFACES) as meter:
        download = work.download(200 * MEGABYTE)
        work.wait_capped()
        qdiscs = work.qdisc()
        changed = work.services.cli_json("set-rate", "ethernet", "5mbit", "--for", "6s")
        assert (changed["cap"], changed["configured_cap"]) == ("5mbit", "1mbit")
        time.sleep(1)
        at_5mbit = time.monotonic()
        eventually(lambda: work.capped()[0].rate == 1_000_000, "override expired", within=8)
        assert 4 < time.monotonic() - at_5mbit < 7
        assert 4.5e6 < meter.series().rate("eth0", at_5mbit, at_5mbit + 4) < 5.5e6
        work.services.cli("set-rate", "ethernet", "8mbit")
        assert work.capped()[0].rate == 8_000_000
        work.services.cli("reset-rate", "ethernet")
        assert work.capped()[0].rate == 1_000_000
        assert work.qdisc() == qdiscs
        download.stop()
