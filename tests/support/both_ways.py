"""A client that downloads and uploads, with a cap in both directions."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from polling import eventually
from proxy_world import MEGABYTE, ethernet_with

from mptcp_lab.curve import MEGA
from mptcp_lab.sampler import PathMeter
from mptcp_lab.squid import PORT
from mptcp_lab.topology import ETHERNET
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy_world import ProxyWorld

    from mptcp_lab.curve import Curve
    from mptcp_lab.services import SubflowStatus
    from mptcp_lab.topology import Client, Family

CAP: Final = Rate.parse("1mbit")
NETWORKS: Final = ethernet_with({RateKind.UPLINK_CAP: CAP})
REPORTED: Final = 5.0
"""Seconds within which a rate that does not flow is reported: invariant I8."""
_WINDOW_SECONDS: Final = 3.0
_INTERFACES: Final = ("eth0", "wlan0")


class Rates(NamedTuple):
    """What a client receives and sends over each of its interfaces, in bits per second; ACKs included."""

    received: dict[str, float]
    sent: dict[str, float]

    @property
    def are_held(self) -> bool:
        """Whether the capped path carries its cap at most, and the preferred one more than that."""
        # A window has two or three pulses of 64 KiB or more.
        most = 2 * CAP.bits_per_second
        return all(each["eth0"] < min(most, each["wlan0"]) for each in self)

    @property
    def are_used(self) -> bool:
        """Whether the capped path carries data in both directions: neither is only acknowledged."""
        # ACKs of the data in the other direction take less than 0.05 of its rate. While the client's receive window
        # limits a download, pulses find little to send: of the cap, only 0.2 may be used.
        return self.are_held and all(each["eth0"] > 0.1 * CAP.bits_per_second for each in self)


def rates(*clients: Client) -> list[Rates]:
    """The rates of each client in the next seconds."""
    with ExitStack() as stack:
        meters = [stack.enter_context(PathMeter(client, _INTERFACES)) for client in clients]
        began = time.monotonic()
        end = began + _WINDOW_SECONDS
        for meter in meters:
            eventually(lambda: meter.interfaces[-1].at >= end, "sampled")  # noqa: B023

    def by_interface(direction: Callable[[str], Curve]) -> dict[str, float]:
        return {each: direction(each).mbps(began, end) * MEGA for each in _INTERFACES}

    return [Rates(by_interface(meter.received), by_interface(meter.sent)) for meter in meters]


def begin_both(world: ProxyWorld, *clients: Client, upload: int = 100 * MEGABYTE, family: Family = 4) -> None:
    """Begin a download and an upload of each client; returns once both directions are capped."""
    for client in clients:
        world.download(client=client, family=family)
        world.upload(upload, client, family=family)
    wait_capped_both(world, 2 * len(clients))


def wait_capped_both(world: ProxyWorld, count: int) -> None:
    """Wait until that many subflows are capped, each in both directions."""
    eventually(lambda: len(capped_both(world)) == count, f"{count} subflows capped", seen=world.services.subflows)


def capped_both(world: ProxyWorld) -> list[SubflowStatus]:
    """The subflows that are capped in both directions."""
    return [each for each in world.services.subflows() if (each.kind, each.uplink_kind) == ("cap", "cap")]


def wait_held(*clients: Client) -> None:
    """Wait until what was queued is sent; then all caps hold, and are used."""
    waiting = list(clients)

    def are_used() -> bool:
        waiting[:] = [each for each, seen in zip(waiting, rates(*waiting), strict=True) if not seen.are_used]
        return not waiting

    eventually(are_used, "all caps used", seen=lambda: [(each.name, *rates(each)) for each in waiting])
    seen = rates(*clients)
    assert all(each.are_held for each in seen), seen


def told_backups(client: Client) -> list[str]:
    """The client's Ethernet subflows that are backups to it, by what the proxy has told it last."""
    shown = client.run("ss", "-tiHO", "dport", "=", f":{PORT}").stdout.splitlines()
    # ss(8): B is MPTCP_SUBFLOW_FLAG_BKUP_REM.
    return [line for line in shown if str(client.address(ETHERNET, 4)) in line and re.search(r" flags:\w*B", line)]


def wait_held_back(world: ProxyWorld, client: Client) -> None:
    """Wait until a subflow is a backup to the client, and one to the proxy: both must be told when they are free."""
    eventually(lambda: bool(told_backups(client)), "a backup to the client")
    eventually(lambda: bool(world.held_back()), "held back at the proxy")


def not_enforced(world: ProxyWorld) -> list[str]:
    """What the daemon's status says of rates that do not flow."""
    lines: list[str] = world.services.status()["daemon"]["not_enforced"]
    return lines


def doctor(world: ProxyWorld) -> list[str]:
    """The lines of doctor."""
    return world.services.cli("doctor", check=False).stdout.splitlines()
