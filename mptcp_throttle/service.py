"""What both services share: start, logging, signals, the single-instance lock, and systemd's notifications."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mptcp_throttle.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def run(main: Callable[[], None]) -> int:
    """Run a program's `main`; every UserError becomes one line per problem on stderr and its exit status."""
    try:
        main()
    except UserError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"{line}\n")
        return error.status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return os.EX_OK


def configure_logging() -> None:
    """Log to stderr, with a time stamp unless the journal adds its own."""
    stamp = "" if "JOURNAL_STREAM" in os.environ else "%(asctime)s.%(msecs)03d "
    logging.basicConfig(level=logging.INFO, format=f"{stamp}%(levelname)s %(message)s", datefmt="%H:%M:%S")


def on_stop_signal(stop: Callable[[], None]) -> None:
    """Call `stop` at SIGTERM and SIGINT, between any two instructions of the main thread."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


@contextmanager
def single_instance(run_directory: Path, name: str) -> Iterator[None]:
    """Hold the lock file of service `name`; the kernel releases it however the process ends.

    Raises UserError if another instance holds it, or the directory cannot be used.
    """
    path = run_directory / f"{name}.lock"
    try:
        run_directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        lock = path.open("a", encoding="ascii")
    except OSError as error:
        raise UserError(f"{path}: cannot be opened: {error.strerror}", os.EX_NOPERM) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{path}: {name} is running already", os.EX_TEMPFAIL) from error
        yield


def missing_capabilities(**bits: int) -> list[str]:
    """Which of the capabilities (linux/capability.h numbers) this process lacks."""
    with open("/proc/self/status", encoding="ascii") as status:
        effective = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
    return [name for name, bit in bits.items() if not effective >> bit & 1]


def require_capabilities(**bits: int) -> None:
    """Raise UserError naming the capabilities (linux/capability.h numbers) this process lacks."""
    missing = missing_capabilities(**bits)
    if missing:
        raise UserError(f"missing capability: {', '.join(missing)}; run as root or grant it in the unit", os.EX_NOPERM)


def notify_systemd(state: str) -> None:
    """Tell systemd `READY=1`, `STOPPING=1` or `STATUS=...` (sd_notify(3)); nothing happens without systemd."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        # A leading @ stands for the zero byte of the abstract name space.
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
        sock.send(state.encode())
