"""The subjects of a shared budget whose totals other proxies do not know yet."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from mptcp_throttled.vocabulary.budgets import Subject
from mptcp_throttled.vocabulary.fleet import FAR_SECONDS, Scope


class SharedSubjects:
    """The subjects whose use has changed since it was told, with the seconds until their next stage.

    Those that are far from a stage, and were told since the last round of all that has changed or in one of the two
    rounds up to that, wait for the next such round.
    """

    def __init__(self, subjects: Iterable[Subject] = ()) -> None:
        self._urgent = dict.fromkeys(subjects, math.inf)
        self._waiting: dict[Subject, float] = {}
        self._forgotten: dict[Subject, None] = {}
        self._told_now = set[Subject]()
        self._told_last = set[Subject]()
        self._told_before_last = set[Subject]()

    def note(self, subject: Subject, seconds: float) -> None:
        """The use of a subject has changed; it reaches its next stage in `seconds`."""
        told = (self._told_last, self._told_now, self._told_before_last)
        if seconds >= FAR_SECONDS and any(subject in each for each in told):
            self._waiting[subject] = seconds
        else:
            self._urgent[subject] = seconds
            self._waiting.pop(subject, None)

    def note_all(self, subjects: Iterable[Subject]) -> None:
        """The use of all of these is to be told at once."""
        self._urgent.update(dict.fromkeys(subjects, math.inf))

    def note_forgotten(self, subjects: Collection[Subject]) -> None:
        """What these have used in the present period is forgotten. From now on they are told with `Scope.ALL`, too.

        Other proxies still believe what was told before, even when their server has lost it.
        """
        self._forgotten.update(dict.fromkeys(subjects))
        self.note_all(subjects)

    @property
    def forgotten(self) -> Iterable[Subject]:
        """The subjects whose use was forgotten."""
        return self._forgotten

    def take(self, scope: Scope) -> dict[Subject, float]:
        """The changed subjects of this scope, with the seconds until their next stage. They count as told."""
        taken, self._urgent = self._urgent, {}
        if scope is Scope.URGENT:
            self._told_now.update(taken)
            return taken
        taken, self._waiting = {**self._waiting, **taken}, {}
        told = self._told_now | taken.keys()
        self._told_before_last, self._told_last, self._told_now = self._told_last, told, set()
        return taken

    def clear(self) -> None:
        """Nothing is to be told any more."""
        self._urgent, self._waiting, self._forgotten = {}, {}, {}
