"""Invariant I4, for logs: a line per decision that changes something, and bounded whatever clients do."""

from __future__ import annotations

import re
from collections.abc import Iterator

import proxy_world
import pytest
from polling import eventually
from proxy_world import Hosts, ProxyWorld

from mptcp_lab.topology import WIFI, ClientSpec, Topology
from mptcp_throttle.model import LogLevel

SUPPRESSED = re.compile(r"WARNING (\d+) log lines of the last 10 s were not written: (\d+) about token=(\w+)")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """One client has a single path, and so no cap."""
    with proxy_world.hosts(Topology(clients=(ClientSpec("both"), ClientSpec("single", wifi=None)))) as built:
        yield built


def test_log_has_no_line_about_a_connection_that_is_free(world: ProxyWorld) -> None:
    single = world.lab.clients["single"]

    def closed() -> int:
        return int(world.services.ask_sniffer("status")["counters"].get("subflows_closed", 0))

    logs = [(process, process.log_text()) for process in (world.daemon, world.sniffer)]
    for _ in range(10):
        assert world.download(1000, single).wait().intact
    eventually(lambda: closed() == 10, "ten connections seen")
    assert [process.log_text().removeprefix(before) for process, before in logs] == ["", ""]
    world.services.configure_log(LogLevel.DEBUG)
    assert world.services.cli("reload").stdout == "reloaded: log_level info -> debug\n"
    assert world.download(1000, single).wait().intact
    eventually(lambda: " DEBUG opened token=" in world.sniffer.log_text(), "details after a reload")
    assert "reload: log_level info -> debug" in world.sniffer.log_text()


def test_log_of_a_client_that_toggles_its_priority_is_bounded(world: ProxyWorld) -> None:
    both = world.lab.clients["both"]
    world.download(client=both)
    (capped,) = world.wait_capped()
    lines = len(world.daemon.log_text().splitlines())
    change = f"ip mptcp endpoint change {both.address(WIFI, 4)}"
    toggle = f"while true; do {change} backup; sleep 0.06; {change} nobackup; sleep 0.06; done"
    toggling = both.start("toggle", "sh", "-c", toggle)
    seconds = eventually(lambda: SUPPRESSED.search(world.daemon.log_text()) is not None, "a summary", within=60)
    toggling.stop()
    log = world.daemon.log_text().splitlines()[lines:]
    assert len(log) <= 21 * (seconds // 10 + 2)
    summary = SUPPRESSED.search("\n".join(log))
    assert summary is not None
    assert summary[3] == capped.token
    assert int(summary[1]) == int(summary[2]) > 20
    both.run("ip", "mptcp", "endpoint", "change", str(both.address(WIFI, 4)), "nobackup")
