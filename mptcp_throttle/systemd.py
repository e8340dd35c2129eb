"""What a service tells systemd: that it is ready, that it stops, and, to the watchdog, that it is alive."""

from __future__ import annotations

import math
import os
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_SEND_SECONDS: Final = 1.0


def notify(state: str) -> None:
    """Send `READY=1`, `STOPPING=1` or `WATCHDOG=1` (sd_notify(3)); nothing happens if nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    # Whatever becomes of systemd, what a service has to put back is put back.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(_SEND_SECONDS)
        # A leading @ stands for the zero byte of the abstract name space.
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
        sock.send(state.encode())


def watchdog_interval(environment: Mapping[str, str]) -> float | None:
    """Seconds within which systemd wants to hear from this process (sd_watchdog_enabled(3)); None: it does not."""
    microseconds = environment.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(microseconds) / 1e6 or None


class Watchdog:
    """Pings systemd's watchdog at half its interval, as sd_watchdog_enabled(3) recommends.

    To be used by the thread without which the service is of no use: no other may keep it alive.
    """

    def __init__(self) -> None:
        interval = watchdog_interval(os.environ)
        self._pause = None if interval is None else interval / 2
        self.due = math.inf if interval is None else -math.inf
        """The monotonic time of the next ping."""

    def alive(self) -> None:
        """Ping if it is time."""
        now = time.monotonic()
        if self._pause is not None and now >= self.due:
            notify("WATCHDOG=1")
            self.due = now + self._pause
