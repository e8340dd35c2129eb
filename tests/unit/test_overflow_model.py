"""What the rules of the overflow model take of Ethernet."""

from __future__ import annotations

import pytest

from mptcp_lab.benchmarks.overflow_model import Rule, play
from mptcp_lab.video import Step

OVERFLOW = 6_000_000


def rates(wifi: int, after_bytes: float = 0.0) -> tuple[float, float]:
    """What Ethernet and both carry while segments are under way, in bits/s."""
    carried, segments = play((Step(0.0, wifi),), Rule("", OVERFLOW, after_bytes))
    seconds = sum(segment.arrived - segment.requested for segment in segments)
    return carried * 8 / seconds, carried * 8 / seconds + wifi


def test_ethernet_has_its_cap_while_wifi_is_fast() -> None:
    ethernet, _ = rates(12_000_000)
    assert ethernet == pytest.approx(1_000_000)


def test_ethernet_carries_what_slow_wifi_lacks() -> None:
    _, both = rates(2_000_000)
    assert both == pytest.approx(OVERFLOW)


def test_rule_that_begins_late_takes_less() -> None:
    assert rates(2_000_000, after_bytes=1e6)[0] < rates(2_000_000)[0]
