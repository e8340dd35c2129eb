"""Whether the wall clock is right, as far as periods of budgets depend on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STAY_SECONDS: Final = 3600.0
"""If nothing tells whether a clock is right, it is trusted after it has run without a step for this time."""

_STEP_SECONDS: Final = 1.0


class ClockTrust:
    """Whether the wall clock may be believed. `is_synchronised` tells whether it is right; None: nothing tells.

    Without `may_begin`, no period begins. Without `is_trusted`, the clock may have jumped ahead by mistake: then only
    the period that follows the present one begins, but none after a gap.
    """

    def __init__(self, is_synchronised: Callable[[], bool] | None) -> None:
        self._is_synchronised = is_synchronised
        self._steady = 0.0
        self._at: float | None = None
        self.is_trusted = is_synchronised is not None and is_synchronised()
        self.may_begin = self.is_trusted or is_synchronised is None

    @property
    def is_confirmed(self) -> bool:
        """Whether `is_synchronised` says that it is right."""
        return self._is_synchronised is not None and self.is_trusted

    def observe(self, at: float, seconds: float) -> None:
        """The clock shows `at` (seconds since the epoch); by the monotonic clock, `seconds` after the last time."""
        is_step = self._at is None or abs(at - self._at - seconds) > _STEP_SECONDS
        self._steady = 0.0 if is_step else self._steady + seconds
        self._at = at
        if self._is_synchronised is not None:
            self.may_begin = self.is_trusted = self._is_synchronised()
        else:
            self.is_trusted = self._steady >= STAY_SECONDS
