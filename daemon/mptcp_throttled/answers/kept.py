"""What takes long to find out is found out once for all who ask within some seconds."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Kept(Generic[_T]):
    """Calls `find` again if what it has found is older than `seconds`. For any thread, one finds at a time."""

    def __init__(self, seconds: float, find: Callable[[], _T], clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._find = find
        self._clock = clock
        self._lock = threading.Lock()
        self._latest: tuple[float, _T | None] = -math.inf, None

    def __call__(self) -> _T:
        """What was found last."""
        with self._lock:
            at, answer = self._latest
            if answer is None or self._clock() - at >= self._seconds:
                answer = self._find()
                self._latest = self._clock(), answer
            return answer
