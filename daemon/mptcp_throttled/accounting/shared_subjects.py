"""The subjects of a shared budget of which other proxies are to know more."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from mptcp_throttled.vocabulary.budgets import Subject
from mptcp_throttled.vocabulary.fleet import FAR_SECONDS, Scope


class SharedSubjects:
    """Subjects whose use has changed, with the seconds until their next stage.

    Those that are far from it, and were taken lately, can wait for the next time that all are taken.
    """

    def __init__(self, subjects: Iterable[Subject] = ()) -> None:
        self._soon = dict.fromkeys(subjects, math.inf)
        self._late: dict[Subject, float] = {}
        self._forgotten: dict[Subject, None] = {}
        self._lately: frozenset[Subject] = frozenset()
        self._before: frozenset[Subject] = frozenset()

    def note(self, subject: Subject, seconds: float) -> None:
        """It has used more, or less, and is so many seconds from a stage."""
        if seconds < FAR_SECONDS or not (subject in self._lately or subject in self._before):
            self._soon[subject] = seconds
        else:
            self._late[subject] = seconds

    def note_all(self, subjects: Iterable[Subject]) -> None:
        """All of these are to be told at once."""
        self._soon.update(dict.fromkeys(subjects, math.inf))

    def note_forgotten(self, subjects: Collection[Subject]) -> None:
        """What these have used in the present period is forgotten, and is told with every total from now on: others
        believe what was told before, also when their server has lost it."""
        self._forgotten.update(dict.fromkeys(subjects))
        self.note_all(subjects)

    @property
    def forgotten(self) -> Iterable[Subject]:
        """Those whose use was forgotten."""
        return self._forgotten

    def take(self, scope: Scope) -> dict[Subject, float]:
        """Those of this scope that have changed, which have not changed any more; seconds until their next stage."""
        taken, self._soon = self._soon, {}
        if scope is not Scope.SOON:
            taken, self._late = {**self._late, **taken}, {}
            self._before, self._lately = self._lately, frozenset(taken)
        return taken

    def clear(self) -> None:
        """There is nothing to be told."""
        self._soon, self._late, self._forgotten = {}, {}, {}
