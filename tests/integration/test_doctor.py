"""`mptcp-throttle doctor` names what keeps the services from working, and nothing on a healthy host."""

from __future__ import annotations

import json

from proxy_world import ProxyWorld

from mptcp_lab.services import Services
from mptcp_lab.topology import Topology, build


def problems(services: Services) -> tuple[int, dict[str, str]]:
    """Its exit status, and the problems by subject."""
    done = services.cli("doctor", "--json", check=False)
    findings = {finding["subject"]: finding["problem"] for finding in json.loads(done.stdout)}
    return done.returncode, {subject: problem for subject, problem in findings.items() if problem is not None}


def test_doctor_finds_no_problem_on_a_healthy_host(world: ProxyWorld) -> None:
    assert problems(world.services) == (0, {})
    assert "ok       proxy port 8080" in world.services.cli("doctor").stdout


def test_doctor_finds_a_pause_and_a_missing_sniffer(world: ProxyWorld) -> None:
    world.services.ask("pause", None)
    assert problems(world.services)[1] == {"mptcp-throttled": "is paused; `mptcp-throttle resume`"}
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
    assert found["kernel"] == "MPTCP is off; `sysctl net.mptcp.enabled=1`"
    assert found["interface"].startswith("eth7 does not exist; allowed: one of eth0, lo")
    assert found["proxy port 8080"] == "is listened on without MPTCP; start the proxy with `mptcpize run`"
    assert {"mptcp-sniffer", "mptcp-throttled"} <= set(found)
