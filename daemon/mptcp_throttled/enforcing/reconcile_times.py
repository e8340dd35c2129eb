"""When to reconcile fully, and when to do a quick check. (If HTB itself changes, `keeper` reconciles fully at once.)

A full reconcile takes longer the more subflows are throttled. Between two of them, quick checks tell whether our table
and the program on the sockets are still there. They take constant time, except with the classifier `rules`, which reads
every rule. The kernel notifies us of changes of qdiscs and classes.

After a notification or an error, a full reconcile follows soon. While each one finds new trouble, they follow with
exponential back-off. So neither a kernel that keeps refusing nor a program that keeps undoing our work keeps us busy.
"""

from __future__ import annotations

from typing import Final

_SHORTEST_SECONDS: Final = 0.1
# Fractions of the time that this may take. A full reconcile of thousands of classes takes long, and JOINs wait for it.
_MAX_FRACTION: Final = 0.1
_MAX_FRACTION_PERIODIC: Final = 0.0025
_MAX_FRACTION_QUICK_CHECKS: Final = 0.01


class ReconcileTimes:
    """The next full reconcile and the next quick check; all times are monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._delay = _SHORTEST_SECONDS
        self._soonest = self._calm_from = now
        self.due = now
        """When to reconcile fully."""
        self.quick_check_due = now

    def quick_checked(self, began: float, ended: float, interval: float) -> None:
        """A quick check has ended."""
        self.quick_check_due = ended + max(interval, (ended - began) / _MAX_FRACTION_QUICK_CHECKS)

    def changed(self) -> None:
        """Something may have changed in the kernel."""
        self.due = min(self.due, self._soonest)

    def reconciled(self, began: float, ended: float, interval: float, *, trouble: bool) -> None:
        """A full reconcile has ended. `trouble`: an error that concerns all, or a plan that had to be repaired.

        The next one comes after `interval`, which is also the longest delay between attempts. Only a full reconcile
        without trouble a whole interval later ends the back-off: a repair may be undone a moment after an earlier one.
        """
        if trouble:
            self._delay = min(self._delay * 2, interval)
            self._calm_from = ended + interval
        elif began >= self._calm_from:
            self._delay = _SHORTEST_SECONDS
        took = ended - began
        self._soonest = ended + max(self._delay, took / _MAX_FRACTION)
        self.due = ended + max(interval, took / _MAX_FRACTION_PERIODIC)
        self.quick_check_due = ended + interval
        if trouble:
            self.changed()
