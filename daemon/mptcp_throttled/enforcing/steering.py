"""Steering, as the control loop sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mptcp_throttle.model import FourTuple
    from mptcp_throttled.vocabulary.decision import Throttle


class SteeringKernel(Protocol):
    """The programs that hold capped subflows back. For one thread; raises nothing."""

    def assign(self, throttles: Mapping[FourTuple, Throttle | None], /) -> None:
        """Let capped subflows send at these rates; None: at none, while they are capped."""

    def priority_of(self, ends: FourTuple, /) -> bool | None:
        """Whether the client wants the subflow as a backup; None if the programs do not know."""

    def held_since(self, ends: FourTuple, /) -> float | None:
        """Since when the programs hold the subflow back, in monotonic seconds; None: they do not."""
