"""Percentiles as all figures of the lab have them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


_SPREAD: Final = {"median": 50, "p90": 90, "worst": 100}


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Median, 90th percentile and maximum of `values`, of which there is at least one; keys begin with `name`."""
    return {f"{name}: {word}": percentile(values, percent) for word, percent in _SPREAD.items()}


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of `values`, of which there is at least one, that `percent` per cent of them do not exceed."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]
