"""Rows of docs/reference/hosts.md: kinds of interfaces, each with a client of its own, capped in both directions."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import interface_kinds
import pytest
from both_ways import NETWORKS, REPORTED, begin_both, doctor, not_enforced, wait_held
from polling import eventually
from proxy_world import LONG, serving
from second_interface import send_small_pulses

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.topology import WIFI, ClientSpec, Topology
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxy_world import Hosts

KINDS: Final = ("bridge", "macvlan", "mq")
TOPOLOGY: Final = Topology(
    clients=(ClientSpec(), *(ClientSpec(kind, families=(4,)) for kind in KINDS)),
    wifi=replace(WIFI, rate=Rate.parse("8mbit")),
)


def test_bridge_macvlan_and_mq_hold_caps_and_are_restored(hosts: Hosts) -> None:
    proxy, clients = hosts.lab.proxy, [hosts.lab.clients[kind] for kind in KINDS]
    names = [interface_kinds.add(hosts, kind, 20 + number) for number, kind in enumerate(KINDS)]
    for client in clients:
        send_small_pulses(client)
    before = [kernel_state(proxy, name) for name in names]
    with serving(hosts, NETWORKS, interfaces=("eth0", *names)) as world:
        begin_both(world, *clients)
        wait_held(*clients)
        assert all(sum(each.bytes for each in world.class_counters(name).values()) > 0 for name in names)
        assert (world.errors(), world.services.status()["daemon"]["not_enforced"]) == ([], [])
        world.abort()
        assert world.daemon.stop() == 0
        assert [kernel_state(proxy, name) for name in names] == before


@pytest.fixture
def gateway_of_ipv6(hosts: Hosts) -> Iterator[str]:
    """The proxy's interface through which its IPv6 leaves, and arrives; IPv4 stays on eth0."""
    proxy, router = hosts.lab.proxy, hosts.lab.router
    ours = hosts.lab.proxy_address(6)
    proxy.ip([f"link add eth6 type veth peer name proxy6 netns {router.namespace}"])
    for host, name, number in ((proxy, "eth6", 2), (router, "proxy6", 1)):
        host.ip([f"address add fd00:99::{number}/64 dev {name} nodad", f"link set {name} up"])
    rule = ("to", "fd00::/16", "table", "6", "priority", "10")
    proxy.ip(["route add ::/0 via fd00:99::1 dev eth6 table 6"])
    proxy.run("ip", "-6", "rule", "add", *rule)
    router.ip([f"route add {ours} via fd00:99::2 dev proxy6 metric 1"])
    yield "eth6"
    proxy.run("ip", "-6", "rule", "delete", *rule)
    proxy.ip(["link delete eth6"])


def test_ipv6_that_leaves_through_another_interface_is_held_there(hosts: Hosts, gateway_of_ipv6: str) -> None:
    with serving(hosts, NETWORKS, interfaces=("eth0", gateway_of_ipv6)) as world:
        send_small_pulses(world.lab.client)
        begin_both(world, world.lab.client, family=6)
        wait_held(world.lab.client)
        assert sum(each.bytes for each in world.class_counters(gateway_of_ipv6).values()) > 0
        assert not any("routes to clients" in line for line in doctor(world) if line.startswith("problem"))


def test_ipv6_that_leaves_through_an_interface_without_a_name_is_reported(hosts: Hosts, gateway_of_ipv6: str) -> None:
    with serving(hosts, NETWORKS) as world:
        elsewhere = f" leave through {gateway_of_ipv6}, where neither HTB nor mptcp-sniffer sees packets"
        assert any("routes to clients of ethernet: " in line and elsewhere in line for line in doctor(world))
        world.download(family=6)
        world.upload(LONG, family=6)
        eventually(lambda: len(world.services.subflows()) == 4, "known")
        began = time.monotonic()
        eventually(lambda: len(not_enforced(world)) == 2, "reported", seen=world.services.subflows)
        assert time.monotonic() - began < REPORTED
