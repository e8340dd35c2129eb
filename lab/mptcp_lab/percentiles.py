"""Percentiles as all figures of the lab have them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of these values, at least one, that so many per cent of them do not exceed."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]
