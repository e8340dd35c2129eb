"""Logs have a line per decision that changes something, and no other."""

from __future__ import annotations

from polling import eventually
from proxy_world import ProxyWorld

from mptcp_lab.topology import ClientSpec, Topology
from mptcp_throttle.model import LogLevel

TOPOLOGY = Topology(clients=(ClientSpec(wifi=None),))
"""The client has a single path, and so no cap."""


def test_log_has_no_line_about_a_connection_that_is_free(world: ProxyWorld) -> None:
    def closed() -> int:
        return int(world.services.ask_sniffer("status")["counters"].get("subflows_closed", 0))

    logs = [(process, process.log_text()) for process in (world.daemon, world.sniffer)]
    for _ in range(10):
        assert world.download(1000).wait().intact
    eventually(lambda: closed() == 10, "ten connections seen")
    assert [process.log_text().removeprefix(before) for process, before in logs] == ["", ""]
    world.services.configure_log(LogLevel.DEBUG)
    assert world.services.cli("reload").stdout == "reloaded: log_level info -> debug\n"
    assert world.download(1000).wait().intact
    eventually(lambda: " DEBUG opened token=" in world.sniffer.log_text(), "details after a reload")
    assert "reload: log_level info -> debug" in world.sniffer.log_text()
