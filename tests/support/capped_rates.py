"""What the paths of a client carry while one of them is capped, on a machine that may stand still for seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mptcp_lab.process import wait_until
from mptcp_lab.sampler import PathMeter
from mptcp_lab.topology import WIFI
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from proxy_world import ProxyWorld

SATURATED: Final = replace(WIFI, rate=Rate.parse("20mbit"))
"""Steering lets the capped path send only while Wi-Fi is saturated, not while an emulated processor is the limit."""

_ROUTER_QUEUE: Final = 62_500
"""Bytes: what the router queues for 50 ms at 10 Mb/s (topology.py), and may still deliver at that rate."""
_SECONDS_OF_CAP: Final = 5
_WITHIN: Final = 60
"""Seconds within which each step is expected."""


def _has_sent(world: ProxyWorld, rate: Rate) -> bool:
    """Whether a class of this rate has sent anything.

    A socket enters its class only after its queue has drained. Open vSwitch leads packets there once it has revalidated
    its cached flows.
    """
    classes = world.class_counters().values()
    return any(each.rate == rate.bits_per_second and each.bytes > 0 for each in classes)


def capped_rates(world: ProxyWorld, cap: Rate) -> dict[str, float]:
    """What Ethernet and Wi-Fi of the client receive, in Mb/s, while Ethernet receives what its cap allows in 5 s.

    It begins when what was queued before has arrived. Needs a download that does not end.
    """
    with PathMeter(world.lab.client, ("eth0", "wlan0")) as meter:

        def arrival(size: int, what: str) -> float:
            """Wait until Ethernet has carried `size` more bytes; the time of the sample that shows it."""
            goal = meter.received("eth0").points[-1][1] + size
            wait_until(lambda: meter.received("eth0").points[-1][1] >= goal, what, _WITHIN)
            return meter.received("eth0").points[-1][0]

        wait_until(lambda: _has_sent(world, cap), "packets sent through the class of the cap", _WITHIN)
        start = arrival(_ROUTER_QUEUE, "router queue drained")
        end = arrival(cap.bits_per_second // 8 * _SECONDS_OF_CAP, "five seconds' worth of the cap received")
        return {interface: meter.received(interface).mbps(start, end) for interface in ("eth0", "wlan0")}
