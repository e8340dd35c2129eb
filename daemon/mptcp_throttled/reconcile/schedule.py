"""When the kernel is compared with the plan: at once where the plan changes, here for all other reasons.

A comparison takes the longer the more are held. So most looks are glances, which show whether rules, sets and the
sockets' program are there, in a time that does not grow; who changes qdiscs or classes is notified of.

After a notification or an error it is compared soon; while every comparison finds new trouble, ever later. So neither a
kernel that keeps refusing nor a program that keeps undoing what we do makes us busy.
"""

from __future__ import annotations

from typing import Final

_SHORTEST_SECONDS: Final = 0.1
# Of the time, for looking alone: with thousands of classes a look takes long, and who joins meanwhile waits for it.
_LARGEST_PART: Final = 0.1
_LARGEST_PART_UNASKED: Final = 0.0025
_LARGEST_PART_GLANCES: Final = 0.01


class Schedule:
    """The next comparison; all times are monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._delay = _SHORTEST_SECONDS
        self._soonest = self._due = self._glance_due = self._calm = now

    @property
    def due(self) -> float:
        """When to compare next."""
        return self._due

    @property
    def glance_due(self) -> float:
        """When to glance next."""
        return self._glance_due

    def glanced(self, began: float, ended: float, interval: float) -> None:
        """It was glanced at."""
        self._glance_due = ended + max(interval, (ended - began) / _LARGEST_PART_GLANCES)

    def changed(self) -> None:
        """Something may have changed in the kernel."""
        self._due = min(self._due, self._soonest)

    def compared(self, began: float, ended: float, interval: float, *, trouble: bool) -> None:
        """It was compared; `trouble`: an error, or something had to be repaired that was in force before.

        The next audit comes after `interval`, which is the longest delay between attempts too. What is in order right
        after a repair may be undone a moment later: only a comparison after that interval ends the back-off.
        """
        if trouble:
            self._delay = min(self._delay * 2, interval)
            self._calm = ended + interval
        elif began >= self._calm:
            self._delay = _SHORTEST_SECONDS
        took = ended - began
        self._soonest = ended + max(self._delay, took / _LARGEST_PART)
        self._due = ended + max(interval, took / _LARGEST_PART_UNASKED)
        self._glance_due = ended + interval
        if trouble:
            self.changed()
