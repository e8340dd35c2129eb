"""What a valid configuration has that is of no use."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mptcp_throttle.config.schema import Config


def notes_of(config: Config, at: float) -> list[str]:
    """One line for each window of a schedule whose dates are over at this time, in seconds since the epoch."""
    local = datetime.fromtimestamp(at, config.time_zone)
    return [
        f"network {network.name}: schedule: {window.when} is over"
        for network in config.networks
        for window in network.schedule
        if window.when.is_over(local)
    ]
