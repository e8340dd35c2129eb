"""How often the daemon observes what flows."""

from __future__ import annotations

import pytest

from mptcp_throttled.accounting.history import FLUSH_SECONDS
from mptcp_throttled.observing.observer import pause_after


@pytest.mark.parametrize(("used", "pause"), [(0.0, 1.0), (0.01, 1.0), (0.03, 3.0), (0.05, 5.0), (2.0, 5.0)])
def test_pause_after_an_observation_follows_from_its_cost(used: float, pause: float) -> None:
    assert pause_after(used) == pytest.approx(pause)
    assert pause <= FLUSH_SECONDS
