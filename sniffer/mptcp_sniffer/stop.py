"""Tells the threads of the service to end, and wakes those that wait for frames or events."""

from __future__ import annotations

import os
import select


class Stop:
    """Set by any thread or by a signal handler. `fileno` lets poll(2) wait for it together with sockets."""

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
        """Wait until it is set, for at most `seconds`; whether it is set."""
        if seconds > 0:
            # A poll object is for one thread at a time.
            waiting = select.poll()
            waiting.register(self, select.POLLIN)
            waiting.poll(1000 * seconds)
        return self._is_set

    def fileno(self) -> int:
        """Readable once it is set."""
        return self._descriptor
