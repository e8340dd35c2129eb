"""Invariant I7: what the kernel refuses for one share delays no other share's cap."""

from __future__ import annotations

from dataclasses import replace

from polling import eventually
from proxy_world import Hosts, serving

from mptcp_lab.fault_plan import FOREVER, Fault, Faults
from mptcp_lab.services import WIFI_FIRST
from mptcp_throttle.model import Per

RECONCILE_INTERVAL = 20.0
OTHERS = 10
SMALL_WINDOWS = {"net/ipv4/tcp_rmem": "4096 16384 16384"}
"""So that all downloads together lose no packet: a Wi-Fi subflow that loses some may become stale, and end the cap."""
BY_SUBFLOW = tuple(replace(network, per=Per.SUBFLOW) for network in WIFI_FIRST)
"""Every capped subflow is a share, with a class of its own: one client is as good as many."""


def test_refused_class_delays_no_other_cap(hosts: Hosts) -> None:
    hosts.lab.client.sysctl(SMALL_WINDOWS)
    faults = Faults(hosts.lab.directory / "refusals")
    faults.plan()
    with serving(hosts, BY_SUBFLOW, {"reconcile_interval": f"{RECONCILE_INTERVAL:g}s"}, faults=faults) as world:
        world.begin_settled()
        faults.plan(Fault("ENOMEM", "tc class add dev eth0 classid 4d50:3 ", times=FOREVER))
        world.download()
        eventually(lambda: len(world.errors()) == 1, "the refusal reported")
        for number in range(OTHERS):
            world.download()
            world.wait_capped(number + 2)
        latencies = [subflow.join_to_cap or 0.0 for subflow in world.capped()]
        # A cap that waited for the retry of the refused class would be late by half the interval on average. The
        # interval is long, since on a busy machine a step may be a second late for other reasons.
        assert max(latencies) < RECONCILE_INTERVAL / 5, latencies
        assert world.errors()[0].startswith("tc class add dev eth0 classid 4d50:3 ")
        faults.plan()
        world.wait_capped(OTHERS + 2)
        eventually(lambda: world.errors() == [], "the refusal resolved")
        world.abort()
