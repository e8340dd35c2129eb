"""Whether a capped path carries what its cap allows, on a machine that may stand still for seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from polling import eventually

from mptcp_lab.curve import MEGA
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
"""Seconds within which each step of a measurement is expected."""
_IN_ALL: Final = 300
"""Seconds within which one measurement finds the cap at work."""


@dataclass(frozen=True, slots=True)
class _Carried:
    """While Ethernet received what its cap allows in 5 s."""

    ethernet: float
    """What the client received over Ethernet, in Mb/s."""
    wifi: float
    """What the client received over Wi-Fi, in Mb/s."""
    in_class: float
    """What the class of the cap sent, as a part of what Ethernet received; below 0 if a new class has replaced it."""


def _class_bytes(world: ProxyWorld, cap: Rate) -> int:
    """What classes of this rate have sent."""
    classes = world.class_counters().values()
    return sum(each.bytes for each in classes if each.rate == cap.bits_per_second)


def _measured(world: ProxyWorld, cap: Rate) -> _Carried:
    """It begins when what was queued before has arrived."""
    with PathMeter(world.lab.client, ("eth0", "wlan0")) as meter:

        def arrival(size: int, what: str) -> float:
            """Wait until Ethernet has carried `size` more bytes; the time of the sample that shows it."""
            goal = meter.received("eth0").points[-1][1] + size
            wait_until(lambda: meter.received("eth0").points[-1][1] >= goal, what, _WITHIN)
            return meter.received("eth0").points[-1][0]

        # A socket enters its class only after its queue has drained. Open vSwitch leads packets there once it has
        # revalidated its cached flows.
        wait_until(lambda: _class_bytes(world, cap) > 0, "packets sent through the class of the cap", _WITHIN)
        start = arrival(_ROUTER_QUEUE, "router queue drained")
        sent = _class_bytes(world, cap)
        size = cap.bits_per_second // 8 * _SECONDS_OF_CAP
        end = arrival(size, "five seconds' worth of the cap received")
        sent = _class_bytes(world, cap) - sent
        ethernet, wifi = (meter.received(interface).mbps(start, end) for interface in ("eth0", "wlan0"))
    return _Carried(ethernet, wifi, sent / size)


def wait_within_cap(world: ProxyWorld, cap: Rate) -> None:
    """Wait until Ethernet carries no more than its cap, through the class of the cap, and Wi-Fi more than that.

    Needs a download that does not end. It may take several measurements: while this machine stands still, Wi-Fi seems
    to be lost, and the daemon frees Ethernet.
    """
    seen: list[_Carried] = []

    def holds() -> bool:
        carried = _measured(world, cap)
        seen.append(carried)
        within_cap = carried.ethernet < 1.2 * cap.bits_per_second / MEGA
        return within_cap and carried.in_class > 0.8 and carried.wifi > carried.ethernet

    eventually(holds, "the cap at work", _IN_ALL, seen=lambda: seen)
