"""A proxy with two interfaces: each has HTB while it exists, and a share is held across both."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import proxy_world
import pytest
from polling import eventually
from proxy_world import Hosts, ProxyWorld, receive_rates
from second_interface import TWO_CLIENTS, add_second_interface

from mptcp_lab.fault_plan import FOREVER, Fault, Faults
from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.services import WIFI_FIRST
from mptcp_lab.topology import ETHERNET
from mptcp_throttle.model import AccessNetwork, Per, RateKind
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WITHIN: Final = 10.0
CAP: Final = Rate(1_000_000)
PER_NETWORK: Final = (
    WIFI_FIRST[0],
    AccessNetwork("ethernet", (ETHERNET.v4, ETHERNET.v6), 2, {RateKind.CAP: CAP}, Per.NETWORK),
)


TOPOLOGY: Final = TWO_CLIENTS


@pytest.fixture(scope="module")
def hosts(hosts: Hosts) -> Hosts:
    add_second_interface(hosts)
    return hosts


@contextmanager
def serving(
    hosts: Hosts, networks: Sequence[AccessNetwork] = WIFI_FIRST, faults: Faults | None = None
) -> Iterator[ProxyWorld]:
    hosts.lab.proxy.tc([f"qdisc replace dev {name} root handle 7: pfifo limit 77" for name in ("eth0", "eth1")])
    daemon = {"reconcile_interval": "1s"}
    with proxy_world.serving(hosts, networks, daemon, interfaces=("eth0", "eth1"), faults=faults) as world:
        yield world


@pytest.fixture
def world(hosts: Hosts) -> Iterator[ProxyWorld]:
    with serving(hosts) as running:
        yield running


def classes(world: ProxyWorld, interface: str) -> dict[str, int]:
    """The rates of the classes of an interface."""
    return {name: counters.rate for name, counters in world.class_counters(interface).items()}


def sent_bytes(world: ProxyWorld, interface: str) -> int:
    """What the classes of an interface have sent."""
    return sum(counters.bytes for counters in world.class_counters(interface).values())


def test_cap_is_held_on_the_interface_that_carries_the_subflow(world: ProxyWorld) -> None:
    second = world.lab.clients["second"]
    world.begin_settled(client=second)
    assert classes(world, "eth0") == classes(world, "eth1") != {}
    on_first, on_second = sent_bytes(world, "eth0"), sent_bytes(world, "eth1")
    rates = receive_rates(second, 3.0)
    assert 0.5 * CAP.bits_per_second < rates["eth0"] < 1.25 * CAP.bits_per_second
    assert rates["wlan0"] > 10 * rates["eth0"]
    assert sent_bytes(world, "eth0") == on_first
    assert sent_bytes(world, "eth1") > on_second + CAP.bytes_per_second
    world.abort()
    world.wait_restored()
    assert world.daemon.stop() == 0
    assert kernel_state(world.proxy) == world.original


def test_share_is_held_across_both_interfaces(hosts: Hosts) -> None:
    with serving(hosts, PER_NETWORK) as world:
        clients = world.lab.clients.values()
        for client in clients:
            world.download(client=client)
        world.wait_settled(2)
        rates = [receive_rates(client, 3.0)["eth0"] for client in clients]
        assert 0.5 * CAP.bits_per_second < sum(rates) < 1.3 * CAP.bits_per_second
        assert min(rates) > 0.2 * CAP.bits_per_second


def test_interface_that_goes_and_comes_back_gets_its_classes(world: ProxyWorld) -> None:
    router = world.lab.router
    first, second = world.lab.clients["ue"], world.lab.clients["second"]
    world.begin_settled(client=first)
    router.ip(["link delete proxy2"])
    eventually(lambda: "capture on eth1 lost" in world.sniffer.log_text(), "the loss noticed", WITHIN)
    assert "table is cleared" not in world.sniffer.log_text()
    assert "none on eth1: missing or down" in world.services.cli("status").stdout
    assert [subflow.rate for subflow in world.capped()] == [CAP.bits_per_second]
    assert world.errors() == []
    add_second_interface(Hosts(world.lab, world.origin))
    eventually(lambda: "capturing again on eth1" in world.sniffer.log_text(), "captured again", WITHIN)
    eventually(lambda: classes(world, "eth1") == classes(world, "eth0") != {}, "classes on eth1", WITHIN)
    world.download(client=second)
    world.wait_settled(2)
    assert receive_rates(second, 3.0)["eth0"] == pytest.approx(CAP.bits_per_second, rel=0.25)


def test_interface_with_an_obstacle_is_left_out_and_reported(world: ProxyWorld) -> None:
    world.proxy.tc(
        [
            "qdisc replace dev eth1 root handle 9: htb default 1",
            "class add dev eth1 parent 9: classid 9:1 htb rate 1gbit",
        ]
    )
    world.begin_settled()
    assert set(classes(world, "eth0").values()) == {CAP.bits_per_second}
    eventually(lambda: any("eth1: root qdisc htb 9:" in error for error in world.errors()), "reported", WITHIN)
    assert "htb 9:" in world.proxy.run("tc", "qdisc", "show", "dev", "eth1").stdout
    world.proxy.tc(["qdisc del dev eth1 root"])
    eventually(lambda: classes(world, "eth1") == classes(world, "eth0"), "classes on eth1", WITHIN)
    eventually(lambda: world.errors() == [], "no error", WITHIN)


def test_interface_that_refuses_htb_does_not_free_the_others(hosts: Hosts) -> None:
    faults = Faults(hosts.lab.directory / "interfaces")
    faults.plan(Fault("ENOMEM", "tc qdisc replace dev eth1 htb", times=FOREVER))
    with serving(hosts, faults=faults) as world:
        world.begin_settled()
        assert set(classes(world, "eth0").values()) == {CAP.bits_per_second}
        eventually(lambda: any(error.startswith("eth1: ") for error in world.errors()), "reported", WITHIN)
        assert "pfifo 7: root" in world.proxy.run("tc", "qdisc", "show", "dev", "eth1").stdout
        world.download()
        world.wait_capped(2)


@pytest.mark.parametrize("interface", ["eth0", "eth1"])
def test_foreign_change_on_either_interface_is_repaired(world: ProxyWorld, interface: str) -> None:
    world.begin_settled()
    planned = classes(world, "eth0")
    for command in (
        "qdisc del dev {} root",
        "class del dev {} classid 4d50:2",
        "class change dev {} classid 4d50:2 htb rate 9mbit",
    ):
        world.proxy.tc([command.format(interface)])
        eventually(lambda: classes(world, "eth0") == classes(world, "eth1") == planned, f"repaired: {command}", WITHIN)
    eventually(lambda: world.errors() == [], "no error", WITHIN)


def test_interface_removed_from_the_configuration_is_restored(world: ProxyWorld) -> None:
    world.begin_settled()
    world.daemon.kill()
    text = world.services.config.read_text(encoding="utf-8")
    world.services.config.write_text(re.sub(r" +- eth1\n", "", text), encoding="utf-8")
    world.start_daemon()
    world.wait_settled()
    assert classes(world, "eth1") == {}
    assert "pfifo 7: root" in world.proxy.run("tc", "qdisc", "show", "dev", "eth1").stdout
