"""Notifications to systemd: ready, stopping, watchdog keep-alives, file descriptors to keep (sd_notify(3))."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

_SEND_SECONDS: Final = 1.0
_FIRST_PASSED: Final = 3  # SD_LISTEN_FDS_START


def notify(state: str, descriptors: Sequence[int] = ()) -> None:
    """Send a state, such as `READY=1`, with file descriptors to store; without systemd nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    # A failure must not end the service, which may have kernel state to restore.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(_SEND_SECONDS)
        # A leading @ stands for the zero byte of an abstract socket address (unix(7)).
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
        socket.send_fds(sock, [state.encode()], list(descriptors))


def keep(name: str, descriptor: int | None) -> None:
    """Let systemd keep a copy of a file descriptor instead of the last descriptor of this name; None: keep none.

    It keeps the copy until the service has ended and no start follows. The unit needs FileDescriptorStoreMax=.
    """
    notify(f"FDSTOREREMOVE=1\nFDNAME={name}")
    if descriptor is not None:
        notify(f"FDSTORE=1\nFDNAME={name}", [descriptor])


def take_kept(name: str) -> tuple[int, ...]:
    """The file descriptors of this name that systemd has kept since an earlier process (sd_listen_fds(3)), once."""
    names = os.environ.pop("LISTEN_FDNAMES", "").split(":")
    if os.environ.pop("LISTEN_PID", None) != str(os.getpid()):
        return ()
    return tuple(descriptor for descriptor, kept in enumerate(names, _FIRST_PASSED) if kept == name)


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
