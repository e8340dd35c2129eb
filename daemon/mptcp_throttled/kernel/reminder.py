"""A thread that runs a kernel program again and again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from mptcp_throttle.linux.kernel_error import KernelError

_log = logging.getLogger("mptcp-throttled")

REMIND_SECONDS: Final = 0.04
"""CREDIT_NS in bpf/token_bucket.h."""

_IDLE_SECONDS: Final = 0.2


class Reminder(threading.Thread):
    """Calls `remind` every `REMIND_SECONDS`, or more rarely if it returned False, until `stop()`; then `close`.

    `drawback` is what the log says when `remind` raises KernelError, once until it succeeds.
    """

    def __init__(self, remind: Callable[[], bool], close: Callable[[], None], drawback: str) -> None:
        super().__init__(name="reminder", daemon=True)
        self._remind = remind
        self._close = close
        self._drawback = drawback
        self._stopping = False

    def run(self) -> None:
        """The thread."""
        try:
            self._run()
        finally:
            self._close()

    def _run(self) -> None:
        failing, is_busy = False, True
        while True:
            time.sleep(REMIND_SECONDS if is_busy else _IDLE_SECONDS)  # an event takes twice the processor time
            if self._stopping:
                return
            try:
                is_busy = self._remind()
                failing = False
            except KernelError as error:
                if not failing:
                    _log.error("%s: %s", self._drawback, error)
                failing = True

    def stop(self) -> None:
        """Let the thread end soon. It does not wait for that: the control loop calls it."""
        self._stopping = True
