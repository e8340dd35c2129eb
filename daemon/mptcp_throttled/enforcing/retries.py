"""When refused objects are tried again: each has an exponential back-off of its own, and none delays another.

As in the reconciler of cilium's statedb (reconciler/retries.go), except that objects are many and an attempt is one
kernel call for all that are due.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mptcp_throttled.enforcing.refused_objects import KernelObject

_FIRST_SECONDS: Final = 0.1
# The fraction of the time that retries may take, however many objects are refused.
_MAX_FRACTION: Final = 0.1


@dataclass(frozen=True, slots=True)
class _Retry:
    error: str
    delay: float
    due: float


class Retries:
    """The refused objects. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._retries: dict[KernelObject, _Retry] = {}
        self._timers: list[tuple[float, int, KernelObject]] = []
        self._order = itertools.count()  # two objects need not be comparable
        self._not_before = -math.inf

    def __len__(self) -> int:
        return len(self._retries)

    @property
    def errors(self) -> tuple[str, ...]:
        """Why the kernel refused the objects, each text once."""
        return tuple(dict.fromkeys(retry.error for retry in self._retries.values()))

    @property
    def refused_minors(self) -> frozenset[int]:
        """The minors of the classes that are refused."""
        return frozenset(key for _, key in self._retries if isinstance(key, int))

    @property
    def next_due(self) -> float:
        """When the next object is to be tried again; infinite: none is refused."""
        while self._timers and not self._is_current(*self._timers[0]):
            heapq.heappop(self._timers)
        return max(self._timers[0][0], self._not_before) if self._timers else math.inf

    def waiting(self, due: Collection[KernelObject]) -> Collection[KernelObject]:
        """The refused objects that are not `due`."""
        return self._retries.keys() - due if due else self._retries.keys()

    def take_due(self, now: float) -> frozenset[KernelObject]:
        """The objects to try again at `now`. The caller must try them and then call `attempted`."""
        due = set()
        while self.next_due <= now:
            due.add(heapq.heappop(self._timers)[2])
        return frozenset(due)

    def attempted(
        self,
        due: Iterable[KernelObject],
        refused: Mapping[KernelObject, str],
        began: float,
        ended: float,
        longest: float,
    ) -> None:
        """An attempt from `began` to `ended` applied the objects `due`, except those `refused`, with the errors.

        `longest` is the longest delay between two attempts, in seconds.
        """
        for kernel_object in due:
            if kernel_object not in refused:
                self._retries.pop(kernel_object, None)
        for kernel_object, error in refused.items():
            before = self._retries.get(kernel_object)
            delay = _FIRST_SECONDS if before is None else min(before.delay * 2, longest)
            self._retries[kernel_object] = _Retry(error, delay, ended + delay)
            heapq.heappush(self._timers, (ended + delay, next(self._order), kernel_object))
        if refused:
            self._not_before = ended + (ended - began) / _MAX_FRACTION

    def forget(self, gone: Iterable[KernelObject]) -> None:
        """These objects are not planned any more."""
        for kernel_object in gone:
            self._retries.pop(kernel_object, None)

    def _is_current(self, due: float, _order: int, kernel_object: KernelObject) -> bool:
        retry = self._retries.get(kernel_object)
        return retry is not None and retry.due == due
