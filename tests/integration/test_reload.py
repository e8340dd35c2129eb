"""Invariant I6: a configuration is adopted as a whole, or the last good one stays in force. And: pause and resume."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import ip_network

import pytest
from bench import MEGABYTE, Bench, bench, eventually

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.topology import ClientSpec, Topology
from mptcp_throttle.model import AccessNetwork, Per
from mptcp_throttle.units import Rate

WIFI, ETHERNET = WIFI_FIRST


@dataclass(frozen=True)
class ClassCounters:
    """Of one HTB class: its rate in bits per second, its leaf's handle, which the kernel chose when it made it."""

    rate: int
    leaf: str
    bytes: int
    drops: int


CLASS = re.compile(
    r"class htb (?P<name>\S+) root leaf (?P<leaf>\S+) prio \d+ rate (?P<rate>\S+) .*\n"
    r" Sent (?P<bytes>\d+) bytes \d+ pkt \(dropped (?P<drops>\d+),"
)


def classes(work: Bench) -> dict[str, ClassCounters]:
    # iproute2 6.1 knows no JSON for classes.
    shown = work.lab.proxy.run("tc", "-s", "class", "show", "dev", "eth0").stdout
    return {
        found["name"]: ClassCounters(
            Rate.parse(found["rate"].lower()).bits_per_second, found["leaf"], int(found["bytes"]), int(found["drops"])
        )
        for found in CLASS.finditer(shown)
    }


def hang_up(work: Bench) -> None:
    assert work.services.daemon is not None
    os.kill(work.services.daemon.pid, signal.SIGHUP)


def log(work: Bench) -> str:
    assert work.services.daemon is not None
    return work.services.daemon.log_text()


def logged(work: Bench, line: str) -> None:
    eventually(lambda: line in log(work), f"logged: {line}")


def with_cap(rate: str, network: AccessNetwork = ETHERNET) -> AccessNetwork:
    return replace(network, cap=Rate.parse(rate))


@pytest.mark.parametrize("reload", [hang_up, lambda work: work.services.cli("reload")], ids=["SIGHUP", "cli"])
def test_a_reload_changes_the_rate_of_a_running_transfer_in_place(work: Bench, reload: Callable[[Bench], None]) -> None:
    download = work.download(200 * MEGABYTE)
    work.wait_settled()
    (before,) = classes(work).items()
    qdiscs, marks = work.qdisc(), work.marks()
    work.services.configure([WIFI, with_cap("8mbit")])
    reload(work)
    logged(work, "reloaded: network ethernet: cap 1mbit -> 8mbit")
    eventually(lambda: work.capped()[0].rate == 8_000_000, "the new rate in force", within=2)
    (after,) = classes(work).items()
    assert after == (before[0], replace(before[1], rate=8_000_000, bytes=after[1].bytes, drops=after[1].drops))
    assert after[1].bytes >= before[1].bytes > 0
    assert (work.qdisc(), work.marks()) == (qdiscs, marks)
    sent = classes(work)[before[0]].bytes
    # 3 MB take 3 s at the new rate, 24 s at the old one.
    eventually(lambda: classes(work)[before[0]].bytes > sent + 3 * MEGABYTE, "the transfer is faster", within=15)
    work.abort(download)


def test_a_reload_does_not_touch_what_has_not_changed() -> None:
    """The two clients of the Ethernet are in access networks of their own, so that one has another cap."""
    first, second = (
        AccessNetwork(name, (ip_network(f"10.1.0.{host}/32"),), 2, Rate.parse("2mbit"), None, Per.CLIENT)
        for name, host in (("first", 2), ("second", 3))
    )
    clients = (ClientSpec("one", families=(4,)), ClientSpec("two", families=(4,)))
    with bench(Topology(clients=clients), (WIFI, first, second)) as work:
        for host in work.lab.clients.values():
            work.download(200 * MEGABYTE, host)
        work.wait_settled(2)
        subflows = {subflow["network"]: subflow for subflow in every_subflow(work) if subflow["class"]}
        changed, other = subflows["first"]["class"], subflows["second"]["class"]
        monitor = Monitor(work)
        before, marks, qdiscs = classes(work), work.marks(), work.qdisc()
        dsl = AccessNetwork("dsl", (ip_network("10.9.0.0/24"),), 3, Rate.parse("1mbit"), None, Per.CLIENT)
        work.services.configure([WIFI, with_cap("1mbit", first), second, dsl])
        answer = work.services.cli("reload").stdout
        after = classes(work)
        assert answer == "reloaded: network first: cap 2mbit -> 1mbit; network dsl added\n"
        assert (after[changed].rate, after[other].rate) == (1_000_000, 2_000_000)
        assert {event.partition(" dev ")[0] for event in monitor.events()} == {f"class htb {changed}"}
        for name, counters in after.items():
            assert counters.leaf == before[name].leaf
            assert counters.bytes >= before[name].bytes
        assert after[other].drops == before[other].drops
        assert (work.marks(), work.qdisc()) == (marks, qdiscs)
        sent = after[other].bytes
        eventually(lambda: classes(work)[other].bytes > sent + MEGABYTE, "the other transfer goes on", within=20)
        assert {s["network"]: s["class"] for s in every_subflow(work) if s["class"]} == {
            "first": changed,
            "second": other,
        }


class Monitor:
    """What the kernel notifies of qdiscs, classes and filters of the proxy, from now on."""

    def __init__(self, work: Bench) -> None:
        self._proxy = work.lab.proxy
        self._process = self._proxy.start("monitor", "stdbuf", "-oL", "tc", "monitor")
        self._mark("1000")
        self._before = len(self._lines())

    def events(self) -> list[str]:
        """A line each, up to now."""
        self._mark("2000")
        return [line for line in self._lines()[self._before :] if " dev lo " not in line]

    def _lines(self) -> list[str]:
        return self._process.log_text().splitlines()

    def _mark(self, limit: str) -> None:
        """Wait until a change to the loopback interface, which nobody else makes, has been notified."""

        def notified() -> bool:
            self._proxy.tc([f"qdisc replace dev lo root pfifo limit {limit}"])
            return any(f" dev lo root refcnt 2 limit {limit}p" in line for line in self._lines())

        eventually(notified, "the mark in the notifications")


def every_subflow(work: Bench) -> list[dict[str, str]]:
    return [s for connection in work.services.cli_json("connections")["connections"] for s in connection["subflows"]]


def test_an_invalid_file_changes_nothing_until_a_good_one_comes(work: Bench) -> None:
    download = work.download(200 * MEGABYTE)
    work.wait_settled()
    plan, marks = work.qdisc_kinds(), work.marks()
    loaded_at = work.services.status()["daemon"]["config"]["loaded_at"]
    file = work.services.directory / "networks.d" / "ethernet.yaml"
    work.services.configure([replace(WIFI, per=Per.SUBFLOW), ETHERNET])
    good = file.read_text()
    file.write_text(good.replace("cap: 1mbit", "cap: fast"))
    number = good.splitlines().index("cap: 1mbit") + 1
    line = f"{file}:{number}: cap: 'fast': is not a rate; allowed: a number with bit, kbit, mbit or gbit"

    refused = work.services.cli("reload", check=False)
    assert (refused.returncode, refused.stdout) == (os.EX_CONFIG, "")
    assert refused.stderr.startswith(line)
    assert f"reload refused: {line}" in log(work)
    config = work.services.status()["daemon"]["config"]
    assert config["loaded_at"] == loaded_at
    assert [problem.startswith(line) for problem in config["problems"]] == [True]
    assert f"reload refused: {line}" in work.services.cli("status").stdout
    assert (work.qdisc_kinds(), work.marks(), work.capped()[0].rate) == (plan, marks, 1_000_000)
    assert work.services.status()["networks"][0]["per"] == "client"

    file.write_text(good)
    assert work.services.cli("reload").stdout == "reloaded: network wifi: per client -> subflow\n"
    assert work.services.status()["networks"][0]["per"] == "subflow"
    assert work.services.status()["daemon"]["config"]["problems"] == []
    assert work.services.cli_json("reload") == {
        "changes": [],
        "dropped_overrides": [],
        "problems": [],
        "valid": True,
    }
    assert work.services.status()["daemon"]["config"]["loaded_at"] > loaded_at
    assert work.services.cli("reload").stdout == "reloaded: nothing changed\n"
    work.abort(download)


def test_a_file_that_is_invalid_at_a_hang_up_is_shown_by_status(work: Bench) -> None:
    file = work.services.directory / "networks.d" / "ethernet.yaml"
    file.write_text(file.read_text() + "colour: red\n")
    hang_up(work)
    eventually(lambda: bool(work.services.status()["daemon"]["config"]["problems"]), "the problem in status")
    assert f"reload refused: {file}:" in work.services.cli("status").stdout
    assert f"reload refused: {file}:" in log(work)


def test_what_needs_a_restart_refuses_the_whole_reload(work: Bench) -> None:
    config, good = work.services.config, work.services.config.read_text()
    config.write_text(good.replace("8080", "8081").replace("linger: 2s", "linger: 3s\n  mark_mask: 0xff0000"))
    work.services.configure([WIFI, with_cap("5mbit")])
    lines = [
        "proxy.ports 8080 -> 8081: needs a restart of mptcp-sniffer and mptcp-throttled",
        "daemon.mark_mask 0xffff0000 -> 0x00ff0000: needs a restart of mptcp-throttled",
    ]
    refused = work.services.cli("reload", check=False)
    assert (refused.returncode, refused.stderr.splitlines()) == (1, lines)
    status = work.services.status()
    assert status["daemon"]["config"]["problems"] == lines
    assert status["networks"][1]["configured_cap"] == "1mbit"
    config.write_text(good)
    assert work.services.cli("reload").stdout == "reloaded: network ethernet: cap 1mbit -> 5mbit\n"
    assert work.services.status()["daemon"]["config"]["problems"] == []


def test_a_hang_up_tells_the_sniffer_what_concerns_it_and_stops_nothing(work: Bench) -> None:
    sniffer = work.services.sniffer
    assert sniffer is not None

    def after_hang_up(expected: str) -> None:
        before = sniffer.log_text()
        os.kill(sniffer.pid, signal.SIGHUP)
        eventually(lambda: bool(re.search(expected, sniffer.log_text().removeprefix(before))), expected)

    config, good = work.services.config, work.services.config.read_text()
    work.services.configure([WIFI, with_cap("5mbit")])
    after_hang_up("reload: nothing has changed that concerns the sniffer")
    config.write_text(good.replace("sniffer: {}", "sniffer: {history: 64}"))
    after_hang_up("reload: sniffer.history 4096 -> 64: needs a restart of mptcp-sniffer")
    config.write_text(good + "colour: red\n")
    after_hang_up(r"reload: \S+yaml:\d+: colour: 'red': unknown key")
    assert work.services.status()["sniffer"]["connected"]
    assert work.services.exit_statuses == (None, None)


def test_rates_set_by_hand_survive_a_reload_and_a_restart_as_far_as_they_fit(work: Bench) -> None:
    dsl = AccessNetwork("dsl", (ip_network("10.9.0.0/24"),), 2, Rate.parse("1mbit"), None, Per.CLIENT)
    work.services.configure([WIFI, ETHERNET, dsl])
    assert work.services.cli("reload").stdout == "reloaded: network dsl added\n"
    for network in ("ethernet", "dsl"):
        work.services.cli("set-rate", network, "5mbit")
    work.services.cli("set-rate", "wifi", "9mbit", "--limit")

    work.services.configure([WIFI, with_cap("2mbit")])
    gone = "override of dsl cap dropped: dsl: no such access network; allowed: wifi, ethernet"
    assert work.services.cli_json("reload")["dropped_overrides"] == [gone]
    logged(work, gone)
    assert overrides(work) == {("wifi", "limit", 9_000_000), ("ethernet", "cap", 5_000_000)}

    work.services.configure([WIFI, replace(with_cap("2mbit"), limit=Rate.parse("3mbit"))])
    assert work.services.daemon is not None
    work.services.daemon.kill()
    work.services.start_daemon()
    work.services.wait_ready()
    logged(work, "override of ethernet cap dropped: ethernet: cap 5mbit would be more than limit 3mbit")
    assert overrides(work) == {("wifi", "limit", 9_000_000)}


def overrides(work: Bench) -> set[tuple[str, str, int]]:
    return {
        (override["network"], override["rule"], override["rate_bps"])
        for network in work.services.status()["networks"]
        for override in network["overrides"]
    }


def test_a_pause_frees_everybody_until_resumed_and_survives_a_crash(work: Bench) -> None:
    before = kernel_state(work.lab.proxy)
    work.services.cli("set-rate", "wifi", "20mbit", "--limit")
    download = work.download(400 * MEGABYTE)
    eventually(lambda: {s.rule for s in work.services.subflows()} == {"cap", "limit"}, "held")
    for _ in range(2):
        assert work.services.cli("pause").stdout == "paused by the operator, until resumed: nothing is throttled\n"
        assert work.marks() == []
        assert {s.reason for s in work.services.subflows()} == {"paused by the operator"}
    eventually(lambda: kernel_state(work.lab.proxy) == before, "the interface as it was")

    assert work.services.daemon is not None
    work.services.daemon.kill()
    work.services.start_daemon()
    work.services.wait_ready()
    eventually(lambda: len(work.services.subflows()) == 2, "the table is there")
    assert {(s.rule, s.reason) for s in work.services.subflows()} == {(None, "paused by the operator")}
    assert work.services.status()["daemon"]["pause"] == {"expires_at": None, "seconds_left": None}
    assert "paused by the operator, until resumed: nothing is throttled\n" in work.services.cli("status").stdout
    assert kernel_state(work.lab.proxy) == before

    for _ in range(2):
        assert work.services.cli("resume").stdout == "not paused\n"
        assert {s.rule for s in work.services.subflows()} == {"cap", "limit"}
    assert work.services.status()["daemon"]["pause"] is None
    assert download.running
    work.abort(download)


def test_a_pause_for_a_time_ends_by_itself(work: Bench) -> None:
    download = work.download(200 * MEGABYTE)
    work.wait_capped()
    pause = work.services.cli_json("pause", "--for", "4s")["pause"]
    assert 3 < pause["seconds_left"] <= 4
    assert work.capped() == []
    shown = re.search(r"paused by the operator, for (\d) s: nothing is throttled", work.services.cli("status").stdout)
    assert shown is not None
    assert 1 <= int(shown[1]) <= 4
    waited = eventually(lambda: len(work.capped()) == 1, "capped again", within=6)
    assert waited > 1
    assert work.services.status()["daemon"]["pause"] is None
    assert "pause expired" in log(work)
    work.abort(download)
