"""What a valid configuration has that is of no use, or of less than it seems."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from mptcp_throttle.model import RateKind

if TYPE_CHECKING:
    from mptcp_throttle.config.schema import Config


def notes_of(config: Config, at: float) -> list[str]:
    """One line for each thing; `at` is in seconds since the epoch."""
    damaged = () if config.policy_problem is None else (config.policy_problem,)
    return [*damaged, *windows_over(config, at), *_high_overflows(config)]


def windows_over(config: Config, at: float) -> list[str]:
    """One line for each window of a schedule whose dates are over at this time, in seconds since the epoch."""
    local = datetime.fromtimestamp(at, config.time_zone)
    return [
        f"network {network.name}: schedule: {window.when} is over"
        for network in config.networks
        for window in network.schedule
        if window.when.is_over(local)
    ]


def _high_overflows(config: Config) -> Iterator[str]:
    for network in config.networks:
        overflow, limit = network.overflow, network.rates.get(RateKind.LIMIT)
        if overflow is not None and limit is not None and overflow > limit:
            bound = f"is more than the limit {limit}, above which no cap is raised"
            yield f"network {network.name}: overflow: {overflow} {bound}"
