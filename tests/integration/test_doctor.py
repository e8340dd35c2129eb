"""`mptcp-throttle doctor` names what keeps the services from working, and nothing on a healthy host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from proxy_world import ProxyWorld

from mptcp_lab.services import Services
from mptcp_lab.topology import Topology, build

if TYPE_CHECKING:
    from mptcp_throttle.rpc import Json


def findings(services: Services) -> tuple[int, list[Json]]:
    """Its exit status, and what it has found."""
    done = services.cli("doctor", "--json", check=False)
    return done.returncode, json.loads(done.stdout)


def problems(services: Services) -> tuple[int, dict[str, str]]:
    """Its exit status, and the problems by subject."""
    status, found = findings(services)
    return status, {one["subject"]: one["problem"] for one in found if one["problem"] is not None}


def test_doctor_finds_no_problem_on_a_healthy_host(world: ProxyWorld) -> None:
    status, found = findings(world.services)
    assert (status, [one for one in found if one["problem"] or one["unchecked"]]) == (0, [])
    assert "ok       proxy port 8080" in world.services.cli("doctor").stdout


def test_doctor_finds_a_pause_and_a_missing_sniffer(world: ProxyWorld) -> None:
    world.services.ask("pause", None)
    assert problems(world.services)[1] == {"mptcp-throttled": "is paused"}
    shown = world.services.cli("doctor", check=False).stdout
    assert "problem  mptcp-throttled: is paused; `mptcp-throttle resume`" in shown
    world.sniffer.stop()
    status, found = problems(world.services)
    assert status == 1
    assert set(found) == {"mptcp-sniffer", "mptcp-throttled"}


def test_doctor_finds_missing_mptcp_and_a_missing_interface() -> None:
    with build(Topology()) as lab:
        services = Services(lab.proxy, interface="eth7")
        lab.proxy.sysctl({"net/mptcp/enabled": "0"})
        listener = lab.proxy.start("listener", "python3", "-m", "http.server", "8080")
        listener.wait_until(lambda: lab.proxy.listens(8080), "listening")
        status, found = problems(services)
    assert status == 1
    assert found["kernel"] == "MPTCP is off"
    assert found["interface"].startswith("eth7 does not exist; allowed: one of eth0, lo")
    assert found["proxy port 8080"] == "is listened on without MPTCP"
    assert {"mptcp-sniffer", "mptcp-throttled"} <= set(found)
