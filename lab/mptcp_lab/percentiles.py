"""Percentiles as all figures of the lab have them."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Spread(NamedTuple):
    """How values are spread: `p90` is not exceeded by nine in ten of them."""

    median: float
    p90: float
    worst: float

    def named(self, name: str) -> dict[str, float]:
        """The three figures under their names, which begin with this `name`."""
        return {f"{name}: {word}": value for word, value in self._asdict().items()}


def spread(values: Sequence[float], *, low_is_bad: bool = False) -> Spread:
    """The spread of `values`, of which there is at least one.

    If `low_is_bad`, nine in ten values are at least `p90`, and the lowest one is the worst.
    """
    p90, worst = (10, 0) if low_is_bad else (90, 100)
    return Spread(median(values), percentile(values, p90), percentile(values, worst))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of `values`, of which there is at least one, that `percent` per cent of them do not exceed."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]
