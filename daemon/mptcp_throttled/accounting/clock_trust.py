"""Whether the wall clock is right, as far as periods of budgets depend on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STAY_SECONDS: Final = 3600.0
"""How long a clock must run on from where it is, until it is trusted, if nothing tells whether it is right."""

_STEP_SECONDS: Final = 1.0


class ClockTrust:
    """What is known of the wall clock. `is_synchronised` tells whether it is right; None: nothing does.

    While it is not `may_begin`, no period begins. While it is not `is_trusted`, it may have jumped ahead by mistake: no
    period begins before which a whole one is left out.
    """

    def __init__(self, is_synchronised: Callable[[], bool] | None) -> None:
        self._is_synchronised = is_synchronised
        self._steady = 0.0
        self._at: float | None = None
        self.is_trusted = is_synchronised is not None and is_synchronised()
        self.may_begin = self.is_trusted or is_synchronised is None

    @property
    def is_confirmed(self) -> bool:
        """Whether something tells that it is right."""
        return self._is_synchronised is not None and self.is_trusted

    def look(self, at: float, seconds: float) -> None:
        """It shows `at`, in seconds since the epoch, and so many `seconds` have passed since the last look."""
        is_step = self._at is None or abs(at - self._at - seconds) > _STEP_SECONDS
        self._steady = 0.0 if is_step else self._steady + seconds
        self._at = at
        if self._is_synchronised is not None:
            self.may_begin = self.is_trusted = self._is_synchronised()
        else:
            self.is_trusted = self._steady >= STAY_SECONDS
