"""The class of a subflow is the priority of its socket: what others do to marks and sockets does not change it."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from foreign_program import ForeignProgram
from polling import eventually
from proxy_world import WITHOUT_CAP, Hosts, ProxyWorld, configured, ethernet_with, receive_rates, serving

from mptcp_lab.squid import PORT
from mptcp_lab.topology import Family
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate

CAP = 1e6
DAEMON = {"classifier": "socket"}
TOS_OF_BULK = 0x08
PRIORITY_OF_BULK = 2  # net/ipv4/route.c, ip_tos2prio
OUR_CLASS = 0x4D50_0002


def wait_classed(world: ProxyWorld, count: int = 1) -> None:
    eventually(lambda: len(world.assignments()) == count, f"{count} sockets in a class")


def priorities(world: ProxyWorld) -> list[int]:
    """Of the proxy's established subflows."""
    shown = world.proxy.run("ss", "-tnH", "--tos", "state", "established", "sport", "=", f":{PORT}").stdout
    return sorted(int(sock, 16) for sock in re.findall(r"class_id:(\w+)", shown))


def set_type_of_service(world: ProxyWorld) -> None:
    """As the proxy itself would, on its connections with clients."""
    for sock in world.server_sockets():
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS_OF_BULK)


@pytest.mark.parametrize("family", [4, 6])
def test_capped_subflow_is_in_its_class_without_chain_or_filter(world: ProxyWorld, family: Family) -> None:
    (capped,) = world.begin_settled(family=family)
    wait_classed(world)
    (assignment,) = world.assignments()
    assert (assignment.client, assignment.client_port, assignment.minor, assignment.mask) == (
        capped.client,
        capped.client_port,
        2,
        0,
    )
    assert world.chain() == ""
    assert "filter" not in world.proxy.run("tc", "filter", "show", "dev", "eth0", "parent", "4d50:").stdout
    assert world.services.status()["daemon"]["classifier"] == "socket"
    assert 0.5 * CAP < receive_rates(world.lab.client, 3)["eth0"] < 1.25 * CAP
    assert world.class_counters()["4d50:2"].bytes > 100_000


@pytest.mark.parametrize("mark", ["0x20000", "0x30000"], ids=["of its class", "of no class"])
def test_mark_that_another_program_sets_afterwards_changes_nothing(world: ProxyWorld, mark: str) -> None:
    rule = ("POSTROUTING", "-p", "tcp", "--sport", str(PORT), "-j", "MARK", "--set-mark", mark)
    world.proxy.run("iptables-legacy", "-t", "mangle", "-A", *rule)
    try:
        world.begin_settled()
        wait_classed(world)
        rates = receive_rates(world.lab.client, 3)
        assert rates["eth0"] < 1.25 * CAP
        assert rates["wlan0"] > 10 * CAP
    finally:
        world.proxy.run("iptables-legacy", "-t", "mangle", "-D", *rule)


def test_free_subflow_gets_into_no_class_by_a_foreign_priority(world: ProxyWorld) -> None:
    world.begin_settled()
    for sock in world.server_sockets():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, OUR_CLASS)
    eventually(lambda: priorities(world) == [0, OUR_CLASS], "only the capped subflow in a class")
    world.daemon.kill()
    world.start_daemon()
    world.wait_capped()
    eventually(lambda: priorities(world) == [0, OUR_CLASS], "only the capped subflow in a class")
    assert receive_rates(world.lab.client, 3)["wlan0"] > 10 * CAP


@pytest.mark.parametrize("end", ["pause", "clean-up"])
def test_class_survives_a_type_of_service_and_leaves_its_priority(world: ProxyWorld, end: str) -> None:
    world.download()
    wait_classed(world)
    set_type_of_service(world)
    eventually(lambda: priorities(world) == [PRIORITY_OF_BULK, OUR_CLASS], "the class set again")
    if end == "pause":
        world.services.ask("pause", None)
        eventually(lambda: priorities(world) == [PRIORITY_OF_BULK] * 2, "the priority restored")
    else:
        world.daemon.kill()
        world.services.clean_up()
        assert priorities(world) == [PRIORITY_OF_BULK] * 2


def test_limited_subflow_is_in_a_class_and_has_no_pace(hosts: Hosts) -> None:
    networks = ethernet_with({RateKind.CAP: None, RateKind.LIMIT: Rate(2_000_000)})
    with serving(hosts, networks, {"classifier": "socket"}) as world:
        world.download()
        wait_classed(world)
        assert world.paced() == 0
        world.wait_settled(0)
        windows: list[float] = []

        def carries_its_limit() -> bool:
            windows.append(receive_rates(world.lab.client, 4)["eth0"])
            return windows[-1] > 1.2e6

        # Not in every window: without a pace, MPTCP gives the subflow what the other one then waits for.
        eventually(carries_its_limit, "the limit carried")
        assert max(windows) < 2.5e6


@pytest.mark.parametrize("world", [{"steering": True}, {"steering": False}], indirect=True, ids=["steering", "paces"])
@pytest.mark.parametrize("pacing", [True, False])
def test_sockets_of_a_killed_daemon_leave_their_classes_and_paces(world: ProxyWorld, pacing: bool) -> None:
    world.begin_settled()
    wait_classed(world)
    world.wait_restrained()
    world.daemon.kill()
    world.wait_restrained()
    world.services.configure_daemon(classifier="auto", pacing=pacing)
    world.services.configure(WITHOUT_CAP)
    world.start_daemon()
    eventually(lambda: not world.restrained(), "no subflow paced or held back", within=2)
    eventually(lambda: priorities(world) == [0, 0], "no socket in a class")


@pytest.mark.parametrize("attached", ["before", "after"])
def test_foreign_program_keeps_its_callbacks(hosts: Hosts, tmp_path: Path, attached: str) -> None:
    with configured(hosts, daemon={"steering": False}) as world:
        foreign = ForeignProgram(hosts.lab.proxy, world.server_pids()[0], tmp_path) if attached == "before" else None
        world.services.start_sniffer()
        world.start_daemon()
        foreign = foreign or ForeignProgram(hosts.lab.proxy, world.server_pids()[0], tmp_path)
        try:
            world.begin_paced()
            before = foreign.packets
            eventually(
                lambda: foreign.packets > before + 100, "the other program called for packets of a paced subflow"
            )
        finally:
            foreign.close()
