"""Asks the threads of the service to end: waits for frames and events are over at once."""

from __future__ import annotations

import os
import select


class Stop:
    """Set by any thread or by a signal handler; other objects can be waited for together with it (`fileno`)."""

    def __init__(self) -> None:
        self._is_set = False
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        """End all waits, also those that begin later."""
        self._is_set = True
        os.eventfd_write(self._descriptor, 1)

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Wait up to so long; whether it is set then."""
        if seconds > 0:
            # Each wait has its own: two threads may not use one at a time.
            waiting = select.poll()
            waiting.register(self, select.POLLIN)
            waiting.poll(1000 * seconds)
        return self._is_set

    def fileno(self) -> int:
        """Readable once it is set."""
        return self._descriptor
