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
"""CREDIT_NS in bpf/uplink.bpf.c and bpf/steering.bpf.c."""


class Reminder(threading.Thread):
    """Calls `remind` every `REMIND_SECONDS` until `stop()`, then `close`.

    `drawback` is what the log says when `remind` raises KernelError, once until it succeeds.
    """

    def __init__(self, remind: Callable[[], None], close: Callable[[], None], drawback: str) -> None:
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
        failing = False
        while True:
            time.sleep(REMIND_SECONDS)  # waiting for an event takes twice the processor time
            if self._stopping:
                return
            try:
                self._remind()
                failing = False
            except KernelError as error:
                if not failing:
                    _log.error("%s: %s", self._drawback, error)
                failing = True

    def stop(self) -> None:
        """Let the thread end within `REMIND_SECONDS`. It does not wait for that: the control loop calls it."""
        self._stopping = True
