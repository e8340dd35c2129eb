"""Invariant I5: the two services start, stop and crash in any order. Also: every refusal is one clear line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from polling import eventually
from proxy_world import EXECUTABLES, Hosts, ProxyWorld, configured

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.services import Services
from mptcp_lab.topology import Lab
from mptcp_throttle.rpc import RpcError


@pytest.fixture
def stopped(hosts: Hosts) -> Iterator[ProxyWorld]:
    """A world whose services have not been started."""
    with configured(hosts) as world:
        yield world


@pytest.fixture
def services(stopped: ProxyWorld) -> Services:
    return stopped.services


def connected(services: Services) -> bool | None:
    """What the daemon says of its connection to the sniffer; None while it does not answer."""
    try:
        return bool(services.status()["sniffer"]["connected"])
    except RpcError:
        return None


def answers(services: Services) -> bool:
    """Whether the sniffer answers."""
    try:
        return bool(services.ask_sniffer("status"))
    except RpcError:
        return False


@pytest.mark.parametrize("first", ["sniffer", "daemon"])
def test_services_start_in_either_order_and_a_stopped_sniffer_frees(stopped: ProxyWorld, first: str) -> None:
    services = stopped.services
    if first == "sniffer":
        services.start_sniffer()
        eventually(lambda: answers(services), "the sniffer answering")
        services.start_daemon()
    else:
        # Its first attempt to reach the sniffer meets a missing socket, as those after the stop do.
        services.start_daemon()
        eventually(lambda: connected(services) is False, "the daemon answering, without a sniffer")
        services.start_sniffer()
    services.wait_ready()
    assert connected(services)
    stopped.begin_capped()
    stopped.sniffer.stop()
    eventually(lambda: not stopped.assignments(), "caps lifted without a sniffer", within=2.5)


def test_services_survive_a_crash_of_the_other(world: ProxyWorld) -> None:
    services = world.services
    before = world.begin_capped()
    world.wait_restrained()

    world.sniffer.kill()
    eventually(lambda: not world.assignments(), "caps lifted without a sniffer", within=2.5)
    eventually(lambda: world.paced() == 0, "no socket paced", within=5)
    services.start_sniffer()
    services.wait_ready()
    assert services.ask_sniffer("changes", "an earlier epoch", 0, 5) == {"resync": True}
    (again,) = world.wait_capped()
    assert (again.token, again.client_port) == (before[0].token, before[0].client_port)

    world.daemon.kill()
    world.start_daemon()
    eventually(lambda: len(world.capped()) == 1, "capped again, from the sniffer's table", within=2)


def run_service(lab: Lab, name: str, config: Path, *arguments: str, prefix: tuple[str, ...] = ()) -> tuple[int, str]:
    result = lab.proxy.run(*prefix, EXECUTABLES / name, "--config", config, *arguments, check=False)
    assert "Traceback" not in result.stderr
    return result.returncode, result.stderr.strip()


@pytest.mark.parametrize(
    ("name", "arguments"), [("mptcp-sniffer", ()), ("mptcp-throttled", ()), ("mptcp-throttled", ("--cleanup",))]
)
def test_second_instance_is_refused(world: ProxyWorld, name: str, arguments: tuple[str, ...]) -> None:
    status, line = run_service(world.lab, name, world.services.config, *arguments)
    assert status == os.EX_TEMPFAIL
    assert line.endswith(f"{name}.lock: {name} is running already")
    assert world.services.status()["sniffer"]["connected"]


def test_qdisc_probe_changes_nothing(hosts: Hosts) -> None:
    probe = (
        "from mptcp_throttled.kernel.interfaces import find_interface\n"
        "from mptcp_throttled.kernel.tc import TrafficControl\n"
        "tc = TrafficControl()\n"
        "eth0 = find_interface('eth0')\n"
        "print([tc.knows_qdisc(eth0, kind) for kind in ('htb', 'no_such_kind')])"
    )
    before = kernel_state(hosts.lab.proxy)
    assert hosts.lab.proxy.run(EXECUTABLES / "python", "-c", probe).stdout == "[True, False]\n"
    assert kernel_state(hosts.lab.proxy) == before


@pytest.mark.parametrize("name", ["mptcp-sniffer", "mptcp-throttled"])
def test_services_refuse_an_invalid_configuration(hosts: Hosts, services: Services, name: str) -> None:
    before = hosts.lab.proxy.run("tc", "qdisc", "show").stdout
    wifi = services.config.parent / "networks.d" / "wifi.yaml"
    wifi.write_text("name: wifi\nsubnets: [10.1.0.0/24]\npreference: 1\n")
    status, error = run_service(hosts.lab, name, services.config)
    assert status == os.EX_CONFIG
    assert [line.split(": ")[1] for line in error.splitlines()] == ["subnets[0]"]
    assert hosts.lab.proxy.run("tc", "qdisc", "show").stdout == before


def test_cli_shows_the_state_sets_rates_and_refuses_what_is_impossible(world: ProxyWorld) -> None:
    world.begin_capped()
    cli = world.services.cli
    assert "4d50:2" in cli("connections").stdout
    status = cli("status").stdout
    assert " 1 classes, assigned by socket, 1 subflows capped" in status
    assert re.search(r"^capture: 0 frames dropped, 0 segments refused; \d subflows in the kernel list$", status, re.M)
    plan = world.services.cli_json("plan")
    assert plan["applied"]
    operations = [operation["operation"] for operation in plan["operations"]]
    assert operations == ["ChangePaces", "InstallHtb", "AddClass", "MakeAssignments"]
    assert cli("plan").stdout.endswith("# applied\n")
    for arguments, line in (
        (("set-rate", "dsl", "1mbit"), "dsl: no such access network; allowed: wifi, ethernet"),
        (
            ("set-rate", "wifi", "1mbit"),
            "wifi: is a most preferred network, where a cap never applies; allowed: --limit",
        ),
        (("reset-rate", "dsl"), "dsl: no such access network; allowed: wifi, ethernet"),
    ):
        refused = cli(*arguments, check=False)
        assert (refused.returncode, refused.stderr.strip()) == (1, line)
    cli("set-rate", "wifi", "3mbit", "--limit")
    eventually(lambda: any(s.kind == "limit" and s.rate == 3_000_000 for s in world.services.subflows()), "limited")
    cli("reset-rate", "wifi")
    eventually(lambda: all(s.kind != "limit" for s in world.services.subflows()), "free again")
