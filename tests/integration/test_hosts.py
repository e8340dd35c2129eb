"""Rows of docs/reference/hosts.md: what happens to the caps of both directions when a capped interface changes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import proxy_world
import pytest
from both_ways import (
    NETWORKS,
    REPORTED,
    begin_both,
    doctor,
    not_enforced,
    rates,
    told_backups,
    wait_held,
    wait_held_back,
)
from bound_listener import listener_bound_to
from networkd import networkd
from polling import eventually
from second_interface import TWO_CLIENTS, add_second_interface, address_second_interface, send_small_pulses

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.topology import ETHERNET, WIFI
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxy_world import Hosts, ProxyWorld

    from mptcp_lab.topology import Client

TOPOLOGY: Final = replace(TWO_CLIENTS, wifi=replace(WIFI, rate=Rate.parse("8mbit")))
OWN: Final = "handle 7: pfifo limit 77"


@pytest.fixture(scope="module")
def hosts(hosts: Hosts) -> Hosts:
    add_second_interface(hosts)
    send_small_pulses(hosts.lab.clients["second"])
    return hosts


@pytest.fixture
def world(hosts: Hosts) -> Iterator[ProxyWorld]:
    """The client `second` is capped in both directions, on eth1; after the test, nobody is a backup because of us."""
    hosts.lab.proxy.tc([f"qdisc replace dev eth1 root {OWN}"])
    with proxy_world.serving(hosts, NETWORKS, interfaces=("eth0", "eth1")) as running:
        client = second(running)
        begin_both(running, client)
        wait_held_back(running, client)
        yield running
        assert running.daemon.stop() == 0
        assert running.held_back() == set()
        eventually(lambda: not told_backups(client), "the client told", within=2)
        assert running.services.records == []
    hosts.lab.proxy.run("ip", "link", "set", "lan1", "name", "eth1", check=False)


def second(world: ProxyWorld) -> Client:
    return world.lab.clients["second"]


def root_qdisc(world: ProxyWorld, interface: str) -> str:
    return kernel_state(world.proxy, interface)[f"tc qdisc show dev {interface}"]


def test_renamed_interface_is_reported_and_leaves_no_backup(world: ProxyWorld) -> None:
    world.proxy.ip(["link set eth1 name lan1"])
    eventually(lambda: any("its ACKs do not reach" in line for line in not_enforced(world)), "reported", REPORTED)
    eventually(lambda: root_qdisc(world, "lan1").startswith("qdisc pfifo 7: root"), "the saved qdisc restored")
    assert "none on eth1: missing or down" in world.services.cli("status").stdout
    (seen,) = rates(second(world))
    assert 0.3e6 < seen.received["eth0"] < 2e6, seen  # by its pace
    found = doctor(world)
    assert any("interface: eth1 does not exist; allowed: one of eth0, lan1, lo" in line for line in found)
    assert any("to 10.1.0.3 leave through lan1, where neither HTB nor mptcp-sniffer sees" in line for line in found)
    world.proxy.ip(["link set lan1 name eth1"])
    eventually(lambda: not not_enforced(world), "resolved")
    wait_held(second(world))
    wait_held_back(world, second(world))
    world.proxy.ip(["link set eth1 name lan1"])
    eventually(lambda: root_qdisc(world, "lan1").startswith("qdisc pfifo 7: root"), "the saved qdisc restored")


@pytest.mark.parametrize("how", ["made again", "moved away and back"])
def test_interface_that_comes_back_is_capped_again(world: ProxyWorld, hosts: Hosts, how: str) -> None:
    lab = world.lab
    if how == "made again":
        lab.router.ip(["link delete proxy2"])
    else:
        lab.proxy.ip([f"link set eth1 netns {lab.origin.namespace}"])
        shown = (("tc", "qdisc", "show", "dev", "eth1"), ("bpftool", "net", "show", "dev", "eth1"))
        left = "".join(lab.origin.run(*command).stdout for command in shown)
        assert "htb" not in left
        assert "id" not in left
    eventually(lambda: "none on eth1: missing or down" in world.services.cli("status").stdout, "reported", REPORTED)
    if how == "made again":
        add_second_interface(hosts)
    else:
        lab.origin.ip([f"link set eth1 netns {lab.proxy.namespace}"])
        address_second_interface(hosts, "eth1")
    wait_held(second(world))
    wait_held_back(world, second(world))
    assert world.errors() == []


def test_networkd_that_configures_the_interface_again_gets_its_qdisc_back(hosts: Hosts) -> None:
    """It asks for its qdisc with NLM_F_EXCL, so that ours stays; and it removes the addresses."""
    proxy, client = hosts.lab.proxy, hosts.lab.clients["second"]
    settings = f"""\
[Network]
Address=10.9.0.2/24
LinkLocalAddressing=no
IPv6AcceptRA=no
[Route]
Destination={client.address(ETHERNET, 4)}/32
Gateway=10.9.0.1
[PFIFO]
Parent=root
Handle=9
PacketLimit=99
"""
    proxy.run("tc", "qdisc", "delete", "dev", "eth1", "root", check=False)  # that of another test
    proxy.ip(["address flush dev eth1"])
    with networkd(proxy, "eth1", settings) as networkctl:
        before = kernel_state(proxy, "eth1")
        assert "qdisc pfifo 9: root" in str(before)
        with proxy_world.serving(hosts, NETWORKS, interfaces=("eth0", "eth1")) as world:
            begin_both(world, client)
            networkctl("reconfigure", "eth1")
            networkctl("reload")
            wait_held(client)
            assert world.errors() == []
            world.abort()
            assert world.daemon.stop() == 0
            assert kernel_state(proxy, "eth1") == before


def test_subflow_of_a_bound_socket_is_paced_and_never_held_back(hosts: Hosts) -> None:
    client = hosts.lab.client
    send_small_pulses(client)
    with listener_bound_to("eth0", hosts.lab.proxy), proxy_world.serving(hosts, NETWORKS) as world:
        begin_both(world, client)
        wait_held(client)
        assert (world.paced(), world.held_back()) == (2, set())
        assert not_enforced(world) == []
