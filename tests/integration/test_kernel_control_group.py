"""The control group: kernel and daemon leave the same connections without caps, and compare what ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest
from polling import eventually
from proxy_world import MEGABYTE, ethernet_with

from mptcp_throttle.model import RateKind, Token
from mptcp_throttle.units import Rate
from mptcp_throttled.vocabulary.control_group import ControlGroup

if TYPE_CHECKING:
    from proxy_world import ProxyWorld

    from mptcp_lab.download import Download
    from mptcp_lab.services import SubflowStatus

CONNECTIONS: Final = 20
SLOW: Final = Rate.parse("1mbit")
DAEMON: Final = {"control_group": "50%"}
NETWORKS: Final = ethernet_with({RateKind.UPLINK_CAP: Rate.parse("500kbit")})


def group_of(world: ProxyWorld) -> ControlGroup:
    key = (world.services.directory / "state/control-group.key").read_text(encoding="utf-8")
    return ControlGroup(0.5, bytes.fromhex(key))


def begin(world: ProxyWorld, rate_limit: Rate | None = None) -> list[Download]:
    """Begin downloads that do not end, and wait until each has a subflow on Ethernet and on Wi-Fi."""
    # The client resets a subflow whose first data arrives without the ACK before it, and does not join again: nothing
    # is sent, and so nothing is lost in the router's queues, before all have joined.
    with world.origin.process.suspended():
        downloads = [world.download(rate_limit=rate_limit) for _ in range(CONNECTIONS)]
        subflows = world.services.subflows
        eventually(lambda: len(subflows()) == 2 * CONNECTIONS, "all subflows", seen=subflows)
    return downloads


def ethernet(world: ProxyWorld) -> list[SubflowStatus]:
    return [subflow for subflow in world.services.subflows() if subflow.network == "ethernet"]


def check_same_choice(world: ProxyWorld) -> None:
    """What the daemon decides, and what the kernel does, is what the hash of each token says."""
    group = group_of(world)
    in_group = {each.client_port for each in ethernet(world) if group.has(Token(int(each.token, 16)))}
    outside = {each.client_port for each in ethernet(world)} - in_group
    assert in_group
    assert outside
    eventually(
        lambda: {peer.port for peer in world.restrained()} == outside, "the kernel agrees", seen=world.restrained
    )
    free, capped = (None, "in the control group", "cap"), ("cap", "wifi is live", "cap")
    decided = {**dict.fromkeys(in_group, free), **dict.fromkeys(outside, capped)}

    def decisions() -> dict[int, tuple[str | None, str, str | None]]:
        return {each.client_port: (each.kind, each.reason, each.uplink_kind) for each in ethernet(world)}

    eventually(lambda: decisions() == decided, "the daemon agrees", seen=decisions)


@pytest.mark.parametrize("world", [{"steering": True}, {"steering": False}], indirect=True, ids=["steering", "paces"])
def test_kernel_and_daemon_choose_the_same_also_after_a_restart(world: ProxyWorld) -> None:
    begin(world, SLOW)
    check_same_choice(world)
    group = group_of(world)
    world.daemon.stop()
    world.start_daemon()
    assert group_of(world) == group
    eventually(lambda: len(ethernet(world)) == CONNECTIONS, "all subflows known again")
    check_same_choice(world)


def test_connections_that_end_are_compared(world: ProxyWorld) -> None:
    began = time.monotonic()
    downloads = begin(world)
    group = group_of(world)
    in_group = sum(group.has(Token(int(each.token, 16))) for each in ethernet(world))
    eventually(
        lambda: min(download.received for download in downloads) > MEGABYTE,
        "1 MB received on each",
        within=90,
        seen=lambda: [download.received for download in downloads],
    )
    received, seconds = sum(download.received for download in downloads), time.monotonic() - began
    world.abort()

    def compared() -> tuple[int, int]:
        found = world.services.status()["daemon"]["control_group"]
        return found["capped"]["connections"], found["control"]["connections"]

    eventually(lambda: compared() == (CONNECTIONS - in_group, in_group), "all have ended", seen=compared)
    found = world.services.status()["daemon"]["control_group"]
    capped, control = found["capped"], found["control"]
    assert capped["downloads"] + control["downloads"] == CONNECTIONS
    assert received < capped["sent"] + control["sent"] < 2 * received
    rate = capped["connections"] * capped["rate_bps"] + control["connections"] * control["rate_bps"]
    assert rate == pytest.approx(8 * received / seconds, rel=0.4)
    assert capped["share_with_cap"] < control["share_with_cap"] / 2
    assert found["differences"] == {"bytes_with_cap": None, "share_with_cap": None, "rate_bps": None}
    shown = world.services.cli("status").stdout
    assert "control group (50%)" in shown
    assert "not enough connections yet: 30 in each group" in shown
    assert world.services.status()["daemon"]["features"]["pacing"]["counters"]["not_compared"] == 0
