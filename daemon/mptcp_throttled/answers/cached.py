"""A cache of one answer: what takes long to compute is computed once for all who ask within some seconds."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Cached(Generic[_T]):
    """Gives what `compute` has returned, and calls it again once that is `seconds` old.

    For any thread: those that ask meanwhile wait for the one that computes.
    """

    def __init__(self, seconds: float, compute: Callable[[], _T], clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._compute = compute
        self._clock = clock
        self._lock = threading.Lock()
        self._latest: tuple[float, _T | None] = -math.inf, None

    def __call__(self) -> _T:
        """The answer, at most `seconds` old."""
        with self._lock:
            at, answer = self._latest
            if answer is None or self._clock() - at >= self._seconds:
                answer = self._compute()
                self._latest = self._clock(), answer
            return answer
