"""The main task on a stock kernel, with its default qdisc and with fq; run in the guest by test_stock_kernels.py."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from proxy_world import proxy_world

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.process import wait_until
from mptcp_lab.sampler import PathMeter
from mptcp_lab.topology import WIFI, Topology
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from proxy_world import ProxyWorld

SATURATED = replace(WIFI, rate=Rate.parse("20mbit"))
"""Steering lets the capped path send only while Wi-Fi is saturated, not while the emulated processor is the limit."""
ROUTER_QUEUE = 62_500
"""Bytes: what the router queues for 50 ms at 10 Mb/s (topology.py), and may still deliver at that rate."""

OBSERVED = 625_000
"""Bytes: five seconds of a cap of 1 Mb/s."""


def has_sent(work: ProxyWorld, rate: Rate) -> bool:
    """Whether a class of this rate has sent anything: a socket enters it only after its queue has drained."""
    classes = work.class_counters().values()
    return any(each.rate == rate.bits_per_second and each.bytes > 0 for each in classes)


# A socket that has sent through fq is not paced by TCP any more (SK_PACING_FQ): the class alone holds it.
@pytest.mark.parametrize(("qdisc", "classifier"), [("fq_codel", "auto"), ("fq", "nft")])
def test_capped_path_carries_its_cap_and_the_qdisc_is_restored(qdisc: str, classifier: str) -> None:
    with proxy_world(Topology(wifi=SATURATED, proxy_qdisc=qdisc), daemon={"classifier": classifier}) as work:
        before = kernel_state(work.lab.proxy)
        with PathMeter(work.lab.client, ("eth0", "wlan0")) as meter:

            def arrival(size: int, what: str) -> float:
                """Wait until Ethernet has carried `size` more bytes; the time of the sample that shows it."""
                goal = meter.received("eth0").points[-1][1] + size
                wait_until(lambda: meter.received("eth0").points[-1][1] >= goal, what, 30)
                return meter.received("eth0").points[-1][0]

            download = work.download()
            wait_until(lambda: has_sent(work, Rate.parse("1mbit")), "packets sent through the class of the cap", 30)
            start = arrival(ROUTER_QUEUE, "router queue drained")
            end = arrival(OBSERVED, "five seconds' worth of the cap received")
            work.abort(download)
            ethernet, wifi = (meter.received(interface).mbps(start, end) for interface in ("eth0", "wlan0"))
        # How much less it is depends on how often the emulated processor, not Wi-Fi, is the limit: no pulses then.
        assert ethernet < 1.2
        assert wifi > ethernet
        wait_until(lambda: work.services.status()["daemon"]["qdisc"] == "original", "original qdisc restored", 20)
        assert kernel_state(work.lab.proxy) == before
