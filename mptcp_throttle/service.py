"""What both services share: start, logging, signals, the single-instance lock, and systemd's notifications."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import signal
import socket
import sys
import tempfile
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from mptcp_throttle.errors import EX_BROKEN_PIPE, EX_INTERRUPTED, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


# Those of a pipe and of a full disk. Of all other files an OSError is translated where it occurs: these are of stdout.
_OUTPUT_ERRORS: Final = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO})


def run(main: Callable[[], None]) -> int:
    """Run a program's `main`; every UserError becomes one line per problem on stderr and its exit status.

    So does an output that cannot be written; a reader that has gone (`| head`) ends the program without a word.
    """
    try:
        main()
        sys.stdout.flush()
    except UserError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"{line}\n")
        return error.status
    except KeyboardInterrupt:
        return EX_INTERRUPTED
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS:
            raise
        # What is still buffered would be tried again, and complained about, at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return EX_BROKEN_PIPE
        sys.stderr.write(f"standard output: {error.strerror}\n")
        return os.EX_IOERR
    return os.EX_OK


def configure_logging() -> None:
    """Log to stderr, with a time stamp unless the journal adds its own."""
    stamp = "" if "JOURNAL_STREAM" in os.environ else "%(asctime)s.%(msecs)03d "
    logging.basicConfig(level=logging.INFO, format=f"{stamp}%(levelname)s %(message)s", datefmt="%H:%M:%S")


def on_stop_signal(stop: Callable[[], None]) -> None:
    """Call `stop` at SIGTERM, SIGINT and SIGHUP, between any two instructions of the main thread."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop())


@contextmanager
def single_instance(run_directory: Path, name: str) -> Iterator[None]:
    """Hold the lock file of service `name`; the kernel releases it however the process ends.

    Raises UserError if another instance holds it, or the directory cannot be used.
    """
    path = run_directory / f"{name}.lock"
    try:
        run_directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        # Neither writable nor private: root, by hand, may be the first to make it, and the service's user follows.
        lock = os.open(path, os.O_CREAT | os.O_RDONLY)
    except OSError as error:
        raise UserError(f"{path}: cannot be opened: {error.strerror}", os.EX_NOPERM) from error
    try:
        with suppress(PermissionError):
            os.fchmod(lock, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{path}: {name} is running already", os.EX_TEMPFAIL) from error
        yield
    finally:
        os.close(lock)


def require_writable(directory: Path) -> None:
    """Raise UserError if no file can be made in `directory`."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise UserError(f"{directory}: cannot be written: {error.strerror}", os.EX_NOPERM) from error


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
