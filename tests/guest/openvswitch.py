"""The back end `ovs` at work on a stock kernel. In the guest; test_stock_kernels.py runs the first test only.

The tests share one world and one download that does not end: starting these takes longer than the tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from capped_path import wait_within_cap
from openvswitch_uplink import NORMAL, Uplink
from polling import eventually
from proxy_world import ProxyWorld, configured

from mptcp_throttle.units import Rate


@pytest.fixture(scope="module")
def world(uplink: Uplink) -> Iterator[ProxyWorld]:
    """Both services, and a download; afterwards nothing of theirs is left."""
    before = uplink.tc("qdisc")
    settings = {"backend": "ovs", "openvswitch_directory": str(uplink.switch.directory)}
    with configured(uplink.hosts, daemon=settings) as world:
        world.services.start_sniffer()
        world.start_daemon()
        world.download()
        yield world
        world.abort()
        world.wait_restored()
        # The daemon deletes HTB itself while Open vSwitch does not answer, and its records and rules afterwards.
        eventually(uplink.is_clean, "Open vSwitch has nothing of ours")
    assert uplink.tc("qdisc") == before


def throttled(uplink: Uplink, rate: str = "1Mbit") -> bool:
    """Whether there is a class with this rate, and a rule that leads a subflow to a queue."""
    return f"rate {rate}" in uplink.tc("class") and "set_queue:" in uplink.rules()


@pytest.fixture(autouse=True)
def _in_its_class(world: ProxyWorld, uplink: Uplink) -> None:
    """The download is throttled when a test begins."""
    world.wait_capped()
    eventually(lambda: throttled(uplink), "in its class")


def test_capped_path_carries_its_cap(world: ProxyWorld) -> None:
    assert world.services.status()["daemon"]["classifier"] == "ovs"
    wait_within_cap(world, Rate.parse("1mbit"))


def test_rate_is_changed_in_place(world: ProxyWorld, uplink: Uplink) -> None:
    records, rules = uplink.records(), uplink.rules()
    world.services.cli("set-rate", "ethernet", "4mbit")
    eventually(lambda: throttled(uplink, "4Mbit"), "faster")
    world.services.cli("reset-rate", "ethernet")
    eventually(lambda: throttled(uplink), "as before")
    assert (uplink.records(), uplink.rules()) == (records, rules)
    assert world.errors() == []
    assert world.services.status()["daemon"]["not_enforced"] == []


def test_plan_shows_commands_of_open_vswitch(world: ProxyWorld) -> None:
    shown = world.services.cli("plan").stdout
    assert "ovs-vsctl -- --id=@qos create QoS type=linux-htb" in shown
    assert re.search(r"set_queue:\d+,NORMAL", shown)
    assert "iptables" not in shown


@pytest.mark.parametrize(
    "command",
    [
        "ovs-vsctl --db=unix:{dir}/db.sock clear Port eth0 qos",
        "ovs-vsctl --db=unix:{dir}/db.sock -- clear Port eth0 qos -- --all destroy QoS -- --all destroy Queue",
        "ovs-ofctl del-flows unix:{dir}/br0.mgmt cookie=0x4d507468/-1",
        "ovs-ofctl mod-flows unix:{dir}/br0.mgmt cookie=0x4d507468/-1,tcp,actions=NORMAL",
        "tc qdisc del dev eth0 root",
        "tc class change dev eth0 parent 1:fffe classid 1:2 htb rate 5mbit",
    ],
)
def test_change_by_another_program_is_repaired(world: ProxyWorld, uplink: Uplink, command: str) -> None:
    def found() -> tuple[str, int, str]:
        return uplink.rules(), len(uplink.records().split()), uplink.tc("class")

    planned = found()
    world.proxy.run("sh", "-c", command.format(dir=uplink.switch.directory))
    assert found() != planned
    eventually(lambda: found() == planned, "repaired")


def test_bridge_with_rules_of_its_own_is_not_touched(world: ProxyWorld, uplink: Uplink) -> None:
    uplink.switch.rules("add-flow", "priority=100,udp,actions=drop")
    eventually(lambda: "bridge br0 has OpenFlow rules of its own" in str(world.errors()), "said")
    eventually(lambda: uplink.records() == "" and "set_queue" not in uplink.rules(), "all subflows are free")
    uplink.switch.rules("del-flows", "udp")
    eventually(lambda: throttled(uplink), "throttled again")


def test_next_daemon_adopts_what_a_killed_one_left(world: ProxyWorld, uplink: Uplink) -> None:
    before = uplink.rules(), uplink.records(), uplink.tc("class")
    world.daemon.kill()
    world.start_daemon()
    world.wait_capped()
    assert (uplink.rules(), uplink.records(), uplink.tc("class")) == before
    assert world.errors() == []


def test_clean_up_removes_what_a_killed_daemon_left(world: ProxyWorld, uplink: Uplink) -> None:
    world.daemon.kill()
    world.services.clean_up()
    assert uplink.is_clean()
    world.start_daemon()


def test_daemon_with_tc_removes_what_one_with_ovs_left(world: ProxyWorld, uplink: Uplink) -> None:
    world.daemon.kill()
    world.services.configure_daemon(backend="tc")
    world.start_daemon()
    assert (uplink.records(), uplink.rules()) == ("", NORMAL)
    world.services.configure_daemon(backend="ovs")
    world.daemon.stop()
    world.start_daemon()
