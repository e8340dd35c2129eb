"""`mptcp-throttle doctor` finds what is in the way, and nothing where nothing is."""

from __future__ import annotations

import json

from bench import Bench

from mptcp_lab.services import Services
from mptcp_lab.topology import Topology, build


def problems(services: Services) -> tuple[int, dict[str, str]]:
    """Its exit status, and what is wrong by subject."""
    done = services.cli("doctor", "--json", check=False)
    findings = {finding["subject"]: finding["problem"] for finding in json.loads(done.stdout)}
    return done.returncode, {subject: problem for subject, problem in findings.items() if problem is not None}


def test_a_host_on_which_all_is_well_has_no_problems(work: Bench) -> None:
    assert problems(work.services) == (0, {})
    assert "ok       proxy port 8080" in work.services.cli("doctor").stdout


def test_a_lost_sniffer_and_a_pause_are_found(work: Bench) -> None:
    work.services.ask("pause", None)
    assert problems(work.services)[1] == {"mptcp-throttled": "is paused; `mptcp-throttle resume`"}
    assert work.services.sniffer is not None
    work.services.sniffer.stop()
    status, found = problems(work.services)
    assert status == 1
    assert set(found) == {"mptcp-sniffer", "mptcp-throttled"}


def test_a_kernel_without_mptcp_a_proxy_without_it_and_a_missing_interface_are_found() -> None:
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
