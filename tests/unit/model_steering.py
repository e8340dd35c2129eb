"""A model of steering: the caps that it was given, and the priorities that it says clients have asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mptcp_throttle.model import FourTuple
from mptcp_throttled.vocabulary.decision import Throttle


@dataclass
class ModelSteering:
    """`caps` has what is assigned now, `priorities` and `held` (since when) what the kernel programs know."""

    caps: dict[FourTuple, Throttle] = field(default_factory=dict)
    priorities: dict[FourTuple, bool] = field(default_factory=dict)
    held: dict[FourTuple, float] = field(default_factory=dict)

    def assign(self, throttles: Mapping[FourTuple, Throttle | None]) -> None:
        for ends, throttle in throttles.items():
            if throttle is None:
                self.caps.pop(ends, None)
            else:
                self.caps[ends] = throttle

    def priority_of(self, ends: FourTuple) -> bool | None:
        return self.priorities.get(ends)

    def held_since(self, ends: FourTuple) -> float | None:
        return self.held.get(ends)
