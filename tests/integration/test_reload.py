"""Invariant I6: a configuration is taken as a whole, or the last good one stays in force. Also: pause and resume."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import replace
from ipaddress import ip_network

import pytest
from polling import eventually
from proxy_world import MEGABYTE, ProxyWorld, proxy_world

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.topology import ETHERNET as ETHERNET_LINK
from mptcp_lab.topology import ClientSpec, Topology
from mptcp_throttle.model import AccessNetwork, Per, RateKind
from mptcp_throttle.units import Rate

WIFI, ETHERNET = WIFI_FIRST


def wait_logged(world: ProxyWorld, line: str) -> None:
    eventually(lambda: line in world.daemon.log_text(), f"logged: {line}")


def with_cap(rate: str, network: AccessNetwork = ETHERNET) -> AccessNetwork:
    return network.with_rates({RateKind.CAP: Rate.parse(rate)})


@pytest.mark.parametrize("by", ["SIGHUP", "cli"])
def test_reload_changes_the_rate_of_a_running_transfer_in_place(world: ProxyWorld, by: str) -> None:
    world.begin_settled()
    eventually(lambda: sum(counters.bytes for counters in world.class_counters().values()) > 0, "the class has sent")
    (before,) = world.class_counters().items()
    qdiscs, assignments = world.qdisc(), world.assignments()
    world.services.configure([WIFI, with_cap("8mbit")])
    if by == "SIGHUP":
        world.hang_up()
    else:
        world.services.cli("reload")
    wait_logged(world, "reloaded: network ethernet: cap 1mbit -> 8mbit")
    eventually(lambda: world.capped()[0].rate == 8_000_000, "the new rate applied", within=2)
    (after,) = world.class_counters().items()
    assert after == (before[0], replace(before[1], rate=8_000_000, bytes=after[1].bytes, drops=after[1].drops))
    assert after[1].bytes >= before[1].bytes > 0
    assert (world.qdisc(), world.assignments()) == (qdiscs, assignments)
    sent = world.class_counters()[before[0]].bytes
    # 2 MB take 2 s at the new rate, 16 s at the old one.
    eventually(
        lambda: world.class_counters()[before[0]].bytes > sent + 2 * MEGABYTE, "the transfer is faster", within=12
    )


def test_window_of_a_schedule_that_holds_now_changes_the_rate(world: ProxyWorld) -> None:
    world.begin_settled()
    (network_file,) = world.services.directory.rglob("ethernet.yaml")
    with network_file.open("a", encoding="utf-8") as file:
        file.write('schedule: [{when: "00:00-24:00", cap: 3mbit}]\n')
    world.services.cli("reload")
    eventually(lambda: world.capped()[0].rate == 3_000_000, "the rate of the window applied", within=2)
    wait_logged(world, "ethernet: window 00:00-24:00 began")
    assert "3mbit (schedule 00:00-24:00; configured 1mbit)" in world.services.cli("status").stdout
    explained = world.services.cli("explain", str(world.lab.client.address(ETHERNET_LINK, 4)), "ethernet").stdout
    assert "  cap: 3mbit (schedule 00:00-24:00); otherwise 1mbit\n" in explained
    eventually(lambda: {c.rate for c in world.class_counters().values()} == {3_000_000}, "the class changed", within=2)


def test_reload_does_not_touch_what_has_not_changed() -> None:
    """Each of the two clients' Ethernet addresses is an access network of its own, so that one gets another cap."""
    first, second = (
        AccessNetwork(name, (ip_network(f"10.1.0.{host}/32"),), 2, {RateKind.CAP: Rate.parse("2mbit")}, Per.CLIENT)
        for name, host in (("first", 2), ("second", 3))
    )
    clients = (ClientSpec("one", families=(4,)), ClientSpec("two", families=(4,)))
    with proxy_world(Topology(clients=clients), (WIFI, first, second)) as world:
        for host in world.lab.clients.values():
            world.download(client=host)
        world.wait_settled(2)
        subflows = {subflow["network"]: subflow for subflow in every_subflow(world) if subflow["class"]}
        changed, unchanged = subflows["first"]["class"], subflows["second"]["class"]
        monitor = Monitor(world)
        before, assignments, qdiscs = world.class_counters(), world.assignments(), world.qdisc()
        dsl = AccessNetwork("dsl", (ip_network("10.9.0.0/24"),), 3, {RateKind.CAP: Rate.parse("1mbit")}, Per.CLIENT)
        world.services.configure([WIFI, with_cap("1mbit", first), second, dsl])
        answer = world.services.cli("reload").stdout
        after = world.class_counters()
        assert answer == "reloaded: network first: cap 2mbit -> 1mbit; network dsl added\n"
        assert (after[changed].rate, after[unchanged].rate) == (1_000_000, 2_000_000)
        assert {event.partition(" dev ")[0] for event in monitor.events()} == {f"class htb {changed}"}
        for name, counters in after.items():
            assert counters.leaf == before[name].leaf
            assert counters.bytes >= before[name].bytes
        assert after[unchanged].drops == before[unchanged].drops
        assert (world.assignments(), world.qdisc()) == (assignments, qdiscs)
        sent = after[unchanged].bytes
        eventually(lambda: world.class_counters()[unchanged].bytes > sent + MEGABYTE, "the other transfer goes on")
        assert {s["network"]: s["class"] for s in every_subflow(world) if s["class"]} == {
            "first": changed,
            "second": unchanged,
        }


class Monitor:
    """The kernel's notifications of changes to qdiscs, classes and filters of the proxy, from now on."""

    def __init__(self, world: ProxyWorld) -> None:
        self._proxy = world.proxy
        self._process = self._proxy.start("monitor", "stdbuf", "-oL", "tc", "monitor")
        self._mark("1000")
        self._before = len(self._lines())

    def events(self) -> list[str]:
        """One line per notification, up to now."""
        self._mark("2000")
        return [line for line in self._lines()[self._before :] if " dev lo " not in line]

    def _lines(self) -> list[str]:
        return self._process.log_text().splitlines()

    def _mark(self, limit: str) -> None:
        """Wait until the kernel has notified a change to the loopback interface, which no other test makes."""

        def notified() -> bool:
            self._proxy.tc([f"qdisc replace dev lo root pfifo limit {limit}"])
            return any(f" dev lo root refcnt 2 limit {limit}p" in line for line in self._lines())

        eventually(notified, "the mark in the notifications")


def every_subflow(world: ProxyWorld) -> list[dict[str, str]]:
    return [s for connection in world.services.cli_json("connections")["connections"] for s in connection["subflows"]]


def test_reload_of_an_invalid_file_changes_nothing(world: ProxyWorld) -> None:
    world.begin_settled()
    plan, assignments = world.qdisc_kinds(), world.assignments()
    loaded_at = world.services.status()["daemon"]["config"]["loaded_at"]
    file = world.services.directory / "networks.d" / "ethernet.yaml"
    world.services.configure([replace(WIFI, per=Per.SUBFLOW), ETHERNET])
    good = file.read_text()
    file.write_text(good.replace("cap: 1mbit", "cap: fast"))
    number = good.splitlines().index("cap: 1mbit") + 1
    line = f"{file}:{number}: cap: 'fast': is not a rate; allowed: a number with bit, kbit, mbit or gbit"

    refused = world.services.cli("reload", check=False)
    assert (refused.returncode, refused.stdout) == (os.EX_CONFIG, "")
    assert refused.stderr.startswith(line)
    assert f"reload refused: {line}" in world.daemon.log_text()
    config = world.services.status()["daemon"]["config"]
    assert config["loaded_at"] == loaded_at
    assert [problem.startswith(line) for problem in config["problems"]] == [True]
    assert f"reload refused: {line}" in world.services.cli("status").stdout
    assert (world.qdisc_kinds(), world.assignments(), world.capped()[0].rate) == (plan, assignments, 1_000_000)
    assert world.services.status()["networks"][0]["per"] == "client"

    file.write_text(good)
    assert world.services.cli("reload").stdout == "reloaded: network wifi: per client -> subflow\n"
    assert world.services.status()["networks"][0]["per"] == "subflow"
    assert world.services.status()["daemon"]["config"]["problems"] == []
    assert world.services.cli_json("reload") == {
        "format": 1,
        "changes": [],
        "dropped_overrides": [],
        "problems": [],
        "notes": [],
        "valid": True,
    }
    assert world.services.status()["daemon"]["config"]["loaded_at"] > loaded_at
    assert world.services.cli("reload").stdout == "reloaded: nothing changed\n"

    file.write_text(good + "colour: red\n")
    world.hang_up()
    eventually(lambda: bool(world.services.status()["daemon"]["config"]["problems"]), "the problem in status")
    problem = f"reload refused: {file}:{len(good.splitlines()) + 1}: colour"
    assert problem in world.services.cli("status").stdout
    assert problem in world.daemon.log_text()


def test_reload_notes_a_window_that_is_over(world: ProxyWorld) -> None:
    file = world.services.directory / "networks.d" / "ethernet.yaml"
    file.write_text(file.read_text() + "schedule: [{when: 2020-12-24, cap: 2mbit}]\n")
    note = "network ethernet: schedule: 2020-12-24 is over"
    assert world.services.cli("reload").stdout.splitlines()[1:] == [f"note: {note}"]
    assert f"WARNING reloaded: {note}" in world.daemon.log_text()


def test_reload_with_a_change_that_needs_a_restart_is_refused(world: ProxyWorld) -> None:
    config, good = world.services.config, world.services.config.read_text()
    config.write_text(good.replace("8080", "8081").replace("linger: 2s", "linger: 3s\n  mark_mask: 0xff0000"))
    world.services.configure([WIFI, with_cap("5mbit")])
    lines = [
        "proxy.ports 8080 -> 8081: needs a restart of mptcp-sniffer and mptcp-throttled",
        "daemon.mark_mask 0xffff0000 -> 0x00ff0000: needs a restart of mptcp-throttled",
    ]
    refused = world.services.cli("reload", check=False)
    assert (refused.returncode, refused.stderr.splitlines()) == (1, lines)
    status = world.services.status()
    assert status["daemon"]["config"]["problems"] == lines
    assert status["networks"][1]["rates"]["downlink"]["cap"]["configured"] == "1mbit"
    config.write_text(good)
    assert world.services.cli("reload").stdout == "reloaded: network ethernet: cap 1mbit -> 5mbit\n"
    assert world.services.status()["daemon"]["config"]["problems"] == []


def test_sniffer_logs_at_sighup_what_concerns_it(world: ProxyWorld) -> None:
    sniffer = world.sniffer

    def after_hang_up(expected: str) -> None:
        before = sniffer.log_text()
        os.kill(sniffer.pid, signal.SIGHUP)
        eventually(lambda: bool(re.search(expected, sniffer.log_text().removeprefix(before))), expected)

    config, good = world.services.config, world.services.config.read_text()
    world.services.configure([WIFI, with_cap("5mbit")])
    after_hang_up("reload: no setting of the sniffer has changed")
    config.write_text(good.replace("sniffer: {}", "sniffer: {history: 64}"))
    after_hang_up("reload: sniffer.history 32768 -> 64: needs a restart of mptcp-sniffer")
    config.write_text(good + "colour: red\n")
    after_hang_up(r"reload: \S+yaml:\d+: colour: 'red': unknown key")
    assert world.services.status()["sniffer"]["connected"]
    assert world.services.exit_statuses == (None, None)


def test_valid_overrides_survive_a_reload_and_a_restart(world: ProxyWorld) -> None:
    dsl = AccessNetwork("dsl", (ip_network("10.9.0.0/24"),), 2, {RateKind.CAP: Rate.parse("1mbit")}, Per.CLIENT)
    world.services.configure([WIFI, ETHERNET, dsl])
    assert world.services.cli("reload").stdout == "reloaded: network dsl added\n"
    for network in ("ethernet", "dsl"):
        world.services.cli("set-rate", network, "5mbit")
    world.services.cli("set-rate", "wifi", "9mbit", "--limit")

    world.services.configure([WIFI, with_cap("2mbit")])
    gone = "override of dsl cap dropped: dsl: no such access network; allowed: wifi, ethernet"
    assert world.services.cli_json("reload")["dropped_overrides"] == [gone]
    wait_logged(world, gone)
    assert overrides(world) == {("wifi", "limit", 9_000_000), ("ethernet", "cap", 5_000_000)}

    world.services.configure([WIFI, with_cap("2mbit").with_rates({RateKind.LIMIT: Rate.parse("3mbit")})])
    world.daemon.kill()
    world.start_daemon()
    wait_logged(world, "override of ethernet cap dropped: ethernet: cap 5mbit would be more than limit 3mbit")
    assert overrides(world) == {("wifi", "limit", 9_000_000)}


def overrides(world: ProxyWorld) -> set[tuple[str, str, int]]:
    return {
        (network["name"], kind, rate["rate_bps"])
        for network in world.services.status()["networks"]
        for kind, rate in network["rates"]["downlink"].items()
        if rate["reason"] is not None
    }


def test_pause_frees_all_subflows_and_survives_a_crash(world: ProxyWorld) -> None:
    world.services.cli("set-rate", "wifi", "20mbit", "--limit")
    world.download()
    eventually(lambda: {s.kind for s in world.services.subflows()} == {"cap", "limit"}, "capped and limited")
    for _ in range(2):
        assert world.services.cli("pause").stdout == "paused by the operator, until resumed: nothing is throttled\n"
        assert world.assignments() == []
        assert {s.reason for s in world.services.subflows()} == {"paused by the operator"}
    eventually(lambda: kernel_state(world.proxy) == world.original, "everything restored")

    world.daemon.kill()
    world.start_daemon()
    eventually(lambda: len(world.services.subflows()) == 2, "the sniffer's table known again")
    assert {(s.kind, s.reason) for s in world.services.subflows()} == {(None, "paused by the operator")}
    assert world.services.status()["daemon"]["pause"] == {"expires_at": None, "seconds_left": None}
    assert "paused by the operator, until resumed: nothing is throttled\n" in world.services.cli("status").stdout
    assert kernel_state(world.proxy) == world.original

    for answer in ("resumed: the rates apply again\n", "nothing was paused\n"):
        assert world.services.cli("resume").stdout == answer
        assert {s.kind for s in world.services.subflows()} == {"cap", "limit"}
    assert world.services.status()["daemon"]["pause"] is None


def test_pause_for_a_time_ends_by_itself(world: ProxyWorld) -> None:
    world.begin_capped()
    pause = world.services.cli_json("pause", "--for", "60s")["pause"]
    assert 59 < pause["seconds_left"] <= 60
    assert world.capped() == []
    shown = re.search(r"paused by the operator, for (\d+) s: nothing is throttled", world.services.cli("status").stdout)
    assert shown is not None
    assert 1 <= int(shown[1]) <= 60
    paused = time.monotonic()
    world.services.ask("pause", 3)
    assert world.capped() == []
    world.wait_capped()
    assert 3 <= time.monotonic() - paused < 5
    assert world.services.status()["daemon"]["pause"] is None
    assert "pause expired" in world.daemon.log_text()
