"""What `status` and `connections` say is applied is what flows."""

from __future__ import annotations

import pytest
from polling import eventually
from proxy_world import BACK_ENDS, ProxyWorld, receive_rates

from mptcp_lab.squid import PORT
from mptcp_throttle.rpc import Json

WITHIN = 5.0


def capped_subflow(world: ProxyWorld) -> Json:
    connections = world.services.ask("connections")["connections"]
    return next(one for connection in connections for one in connection["subflows"] if one["network"] == "ethernet")


@pytest.mark.parametrize("world", BACK_ENDS, indirect=True)
def test_mark_that_another_program_overwrites_is_reported(world: ProxyWorld) -> None:
    world.download()
    world.wait_settled()
    assert capped_subflow(world)["not_enforced"] is None
    overwrite = ("POSTROUTING", "-p", "tcp", "--sport", str(PORT), "-j", "MARK", "--set-mark", "0")
    world.lab.proxy.run("iptables-legacy", "-t", "mangle", "-A", *overwrite)
    try:
        eventually(lambda: capped_subflow(world)["not_enforced"] is not None, "reported", WITHIN)
        (line,) = world.services.status()["daemon"]["not_enforced"]
        assert line.startswith("client 10.1.0.2:")
        assert line.endswith("its packets do not reach its class")
        assert f"not enforced: {line}" in world.services.cli("status").stdout
        assert "1mbit (not enforced)" in world.services.cli("connections").stdout
        assert f"a rate is not enforced: {line}" in world.services.cli("doctor", check=False).stdout
        assert "1 subflows: what is applied is not enforced; client=10.1.0.2:" in world.daemon.log_text()
    finally:
        world.lab.proxy.run("iptables-legacy", "-t", "mangle", "-D", *overwrite)
    eventually(lambda: capped_subflow(world)["not_enforced"] is None, "not reported any more", WITHIN)
    assert "resolved: the rates of all subflows are enforced" in world.daemon.log_text()


@pytest.mark.parametrize("world", ["socket", "ipset"], indirect=True)
def test_rates_shown_are_those_that_the_client_receives(world: ProxyWorld) -> None:
    world.download()
    world.wait_settled()
    received = receive_rates(world.lab.client, 4)
    networks = {network["name"]: network["sent_bps"] for network in world.services.status()["networks"]}
    assert 0.5 < networks["ethernet"] / received["eth0"] < 1.5
    assert 0.5 < networks["wifi"] / received["wlan0"] < 1.5
    shown = capped_subflow(world)
    assert 0.5 < shown["sent_bps"] / received["eth0"] < 1.5
    assert shown["sent_bps_10s"] > 0
    assert (world.services.status()["daemon"]["not_enforced"], shown["not_enforced"]) == ([], None)
