"""What the operator has set by hand."""

from __future__ import annotations

from dataclasses import dataclass

from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate


@dataclass(frozen=True, slots=True)
class Override:
    """`rate` None is unlimited; `end`, in monotonic seconds, None is until reset."""

    network: str
    kind: RateKind
    rate: Rate | None
    end: float | None


@dataclass(frozen=True, slots=True)
class Pause:
    """No subflow is throttled until `end` (monotonic seconds); None: until resumed."""

    end: float | None


@dataclass(frozen=True, slots=True)
class OperatorState:
    """Everything set by hand that has not expired."""

    overrides: tuple[Override, ...] = ()
    pause: Pause | None = None

    @property
    def next_expiry(self) -> float | None:
        """When the first of them expires, in monotonic seconds; None if none does."""
        ends = [override.end for override in self.overrides]
        if self.pause is not None:
            ends.append(self.pause.end)
        return min((end for end in ends if end is not None), default=None)
