"""What the daemon does in the kernel besides classes: features that follow the access networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from immutables import Map

from mptcp_throttle.model import AccessNetwork


@dataclass(frozen=True, slots=True)
class Situation:
    """What features act by. `networks` are the access networks with their present rates; none when the daemon ends.

    They are followed by a network for each client with rates of its own, which has the same name and longer prefixes.
    `paused`: by the operator. `throttling`: subflows may be throttled now. `linger` and `interval`
    (`daemon.reconcile_interval`) are in seconds.
    """

    networks: tuple[AccessNetwork, ...] = ()
    paused: bool = False
    throttling: bool = False
    linger: float = 0.0
    interval: float = 1.0


@dataclass(frozen=True, slots=True)
class FeatureState:
    """`problem` is why the feature is not in place although it should be, `counters` what its program has counted.

    `held` is how many subflows it holds back, `switched_off` the setting that does so: `daemon.pacing is false`.
    """

    problem: str | None = None
    counters: Mapping[str, int] = field(default_factory=Map)
    held: int = 0
    switched_off: str | None = None


class Feature(Protocol):
    """A feature of the kernel. For one thread; raises nothing."""

    def follow(self, situation: Situation) -> None:
        """Act by this situation from now on. Called at each step, so it is quick if nothing changes."""

    @property
    def state(self) -> FeatureState:
        """What is wrong, and what was counted."""

    def release(self) -> tuple[str, ...]:
        """Leave the kernel as it was found; returns what could not be restored."""


class Absent:
    """A feature that a `setting` switches off; `is_drawback`: its absence is also shown as a problem."""

    def __init__(self, setting: str, *, is_drawback: bool = True) -> None:
        self.state = FeatureState(setting if is_drawback else None, switched_off=setting)

    def follow(self, situation: Situation) -> None:
        """Do nothing."""

    def release(self) -> tuple[str, ...]:
        """Nothing has to be restored."""
        return ()
