"""The recent rate of use of a budget: an average in which use weighs less the older it is."""

from __future__ import annotations

import math
from typing import Final

from mptcp_throttle.model import Every
from mptcp_throttled.vocabulary.budgets import Subject

_HOUR: Final = 3600.0
_MEMORY_SECONDS: Final = {Every.DAY: 3 * _HOUR, Every.WEEK: 24 * _HOUR, Every.MONTH: 24 * _HOUR}
"""The time constant: after it, use weighs 1/e of what new use does."""

_FORGOTTEN_AFTER: Final = 7.0
"""After this many time constants use is forgotten: it weighs less than a thousandth."""

_LEAST_SECONDS: Final = _HOUR
"""A shorter time says nothing about the next days."""


class RecentUse:
    """What each subject has used lately, since `began`; all times are in monotonic seconds."""

    def __init__(self, every: Every, began: float) -> None:
        self._memory = _MEMORY_SECONDS[every]
        self._began = began
        self._weighted: dict[Subject, tuple[float, float]] = {}

    def add(self, subject: Subject, amount: int, now: float) -> None:
        """A subject has used `amount` bytes."""
        self._weighted[subject] = self._present(subject, now) + amount, now

    def forget_old(self, now: float) -> None:
        """Forget the subjects whose use has hardly any weight."""
        since = now - _FORGOTTEN_AFTER * self._memory
        self._weighted = {subject: each for subject, each in self._weighted.items() if each[1] >= since}

    def rate(self, subject: Subject, now: float) -> float | None:
        """The rate of a subject's recent use, in bytes/s; None: use has been counted for less than an hour."""
        known = now - self._began
        if known < _LEAST_SECONDS:
            return None
        return self._present(subject, now) / (self._memory * (1 - math.exp(-known / self._memory)))

    def _present(self, subject: Subject, now: float) -> float:
        """The bytes that a subject has used, each by its present weight."""
        amount, at = self._weighted.get(subject, (0.0, now))
        return amount * math.exp((at - now) / self._memory)
