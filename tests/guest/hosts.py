"""Rows of docs/reference/hosts.md that need a stock kernel: test_stock_kernels.py runs this in a guest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import interface_kinds
import polling
from proxy_world import MEGABYTE, ProxyWorld, ethernet_with, hosts, serving
from second_interface import send_small_pulses

from mptcp_lab.host import Host
from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.services import SubflowStatus
from mptcp_lab.topology import WIFI, ClientSpec, Topology
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate

KINDS: Final = ("bond", "vlan", "vrf", "wireguard")
# Slow, for an emulated processor.
CAP: Final = Rate.parse("300kbit")
TOPOLOGY: Final = Topology(
    clients=tuple(ClientSpec(name, families=(4,)) for name in ("cake", *KINDS)),
    wifi=replace(WIFI, rate=Rate.parse("2mbit")),
    proxy_qdisc="handle 8: cake",
    proxy_sysctls={"net/ipv4/tcp_l3mdev_accept": "1"},
)
NETWORKS: Final = ethernet_with({RateKind.CAP: CAP, RateKind.UPLINK_CAP: CAP})
SHOW_CAKE: Final = ("tc", "qdisc", "show", "dev", "eth0")
WINDOW: Final = 12.0
PAUSE: Final = 1.0
"""Seconds between two looks, each of which takes the processor's time."""


def eventually(condition: Callable[[], bool], what: str, seen: Callable[[], object] = lambda: "") -> None:
    def look() -> bool:
        time.sleep(PAUSE)
        return condition()

    polling.eventually(look, what, seen=seen)


def carried(clients: Sequence[Host], counter: str) -> list[int]:
    """Bytes that the Ethernet of each has received (`rx`) or sent (`tx`)."""
    return [int(each.run("cat", f"/sys/class/net/eth0/statistics/{counter}_bytes").stdout) for each in clients]


def wait_held(clients: Sequence[Host], counter: str) -> None:
    """Wait until what was queued before is sent, and all caps hold."""

    def are_held() -> bool:
        began, before = time.monotonic(), carried(clients, counter)
        time.sleep(WINDOW)
        after, seconds = carried(clients, counter), time.monotonic() - began
        rates.append([(now - then) * 8 / seconds for now, then in zip(after, before, strict=True)])
        # A window may have a pulse of 64 KiB more.
        return max(rates[-1]) < 1.5 * CAP.bits_per_second

    rates: list[list[float]] = []
    eventually(are_held, "caps held", lambda: rates)


def capped(world: ProxyWorld, is_capped: Callable[[SubflowStatus], bool]) -> int:
    return sum(is_capped(each) for each in world.services.subflows())


def test_bond_vlan_vrf_and_wireguard_hold_caps_beside_cake() -> None:
    with hosts(TOPOLOGY) as built:
        proxy, clients = built.lab.proxy, [*built.lab.clients.values()]
        names = [interface_kinds.add(built, kind, 20 + number) for number, kind in enumerate(KINDS)]
        for client in clients:
            send_small_pulses(client)
        before, cake = [kernel_state(proxy, name) for name in names], proxy.run(*SHOW_CAKE).stdout
        with serving(built, NETWORKS, interfaces=("eth0", *names)) as world:
            for client in clients:
                world.download(client=client)
            eventually(
                lambda: capped(world, lambda each: each.kind == "cap") == len(clients),
                "downloads capped",
                world.services.subflows,
            )
            wait_held(clients, "rx")
            for name in names:
                assert sum(each.bytes for each in world.class_counters(name).values()) > 0, name
            (error,) = world.errors()
            assert error.startswith("eth0: root qdisc cake 8: is of a kind that cannot be restored exactly")
            world.abort()
            for client in clients:
                world.upload(30 * MEGABYTE, client)
            eventually(
                lambda: capped(world, lambda each: each.uplink_kind == "cap") == len(clients),
                "uploads capped",
                world.services.subflows,
            )
            wait_held(clients, "tx")
            status = world.services.status()["daemon"]
            assert status["not_enforced"] == []
            assert (status["features"]["steering"]["problem"], status["features"]["uplinks"]["problem"]) == (None, None)
            world.abort()
            assert world.daemon.stop() == 0
            assert [kernel_state(proxy, name) for name in names] == before
            assert proxy.run(*SHOW_CAKE).stdout == cake
