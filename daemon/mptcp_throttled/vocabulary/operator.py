"""What the operator has set by hand."""

from __future__ import annotations

from dataclasses import dataclass

from mptcp_throttle.model import Address, RateKind
from mptcp_throttle.units import Rate


@dataclass(frozen=True, slots=True)
class Override:
    """A rate set by hand; None: unlimited. It lasts until `end`, in monotonic seconds; None: until it is reset.

    `client` is an address of the client whose rate is set; None: the network's rate is set.
    """

    network: str
    kind: RateKind
    rate: Rate | None
    end: float | None
    client: Address | None = None

    @property
    def subject(self) -> str:
        """Whose rate is set, in words."""
        return self.network if self.client is None else f"{self.network} {self.client}"


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
    def expires(self) -> bool:
        """Whether any of it ends by itself."""
        ends = [override.end for override in self.overrides]
        if self.pause is not None:
            ends.append(self.pause.end)
        return any(end is not None for end in ends)


def is_over(setting: Override | Pause, now: float) -> bool:
    """Whether it has ended at `now`, in monotonic seconds."""
    return setting.end is not None and setting.end <= now
