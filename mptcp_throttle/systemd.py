"""Notifications to systemd: ready, stopping, and watchdog keep-alives (sd_notify(3))."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

_SEND_SECONDS: Final = 1.0


def notify(state: str) -> None:
    """Send `READY=1`, `STOPPING=1` or `WATCHDOG=1`; without systemd nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    # A failure must not end the service, which may have kernel state to restore.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(_SEND_SECONDS)
        # A leading @ stands for the zero byte of an abstract socket address (unix(7)).
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
        sock.send(state.encode())


def watchdog_interval(environment: Mapping[str, str]) -> float | None:
    """The watchdog interval of this process in seconds (sd_watchdog_enabled(3)); None if there is no watchdog."""
    microseconds = environment.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(microseconds) / 1e6 or None


class Watchdog:
    """Pings systemd's watchdog at half its interval, as sd_watchdog_enabled(3) recommends.

    Only the main thread of the service may ping, so that systemd notices if that thread hangs.
    """

    def __init__(self) -> None:
        interval = watchdog_interval(os.environ)
        self._pause = None if interval is None else interval / 2
        self.due = math.inf if interval is None else -math.inf
        """The monotonic time of the next ping."""

    def alive(self) -> None:
        """Ping if it is due."""
        now = time.monotonic()
        if self._pause is not None and now >= self.due:
            notify("WATCHDOG=1")
            self.due = now + self._pause
