"""What both services share: start, logging, signals, and the single-instance lock."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import logging
import os
import queue
import signal
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from mptcp_throttle.errors import EX_BROKEN_PIPE, EX_INTERRUPTED, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mptcp_throttle.config.schema import SocketGroup


# Those of a pipe and of a full disk. Of all other files an OSError is translated where it occurs: these are of stdout.
_OUTPUT_ERRORS: Final = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO})

_M_MMAP_THRESHOLD: Final = -3  # malloc.h
_LARGE_BLOCK_BYTES: Final = 2**17  # what glibc begins with

_SWITCH_SECONDS: Final = 0.0001
# Few young objects at a time, for everybody waits meanwhile; and all of them very rarely: tables have no cycles.
_GARBAGE_THRESHOLDS: Final = (700, 4, 12500)


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


def prefer_latency() -> None:
    """Let no thread and no garbage collection keep the others waiting for long.

    Python's defaults: a thread that computes gives way every 5 ms, and all objects are looked through whenever they
    have become a quarter more, which takes half a second where there are millions.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)


def spare_memory() -> None:
    """Let large blocks go back to the kernel when they are freed.

    By itself glibc keeps blocks of up to 32 MB once one of that size has been freed (mallopt(3), M_MMAP_THRESHOLD), and
    a table leaves many of them behind as it grows.
    """
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)


def on_stop_signal(stop: Callable[[], None]) -> None:
    """Call `stop` at SIGTERM and SIGINT, between any two instructions of the main thread."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


def on_reload_signal(reload: Callable[[], None]) -> None:
    """Call `reload` after SIGHUP, in a thread of its own; signals that come in a row may lead to one call."""
    # Of all means to wake a thread, this one may be used in a signal handler that interrupts itself.
    hang_ups: queue.SimpleQueue[None] = queue.SimpleQueue()

    def follow() -> None:
        while True:
            hang_ups.get()
            while not hang_ups.empty():
                hang_ups.get()
            reload()

    threading.Thread(target=follow, name="reload", daemon=True).start()
    signal.signal(signal.SIGHUP, lambda *_: hang_ups.put(None))


@contextmanager
def single_instance(run_directory: Path, name: str, group: SocketGroup | None = None) -> Iterator[None]:
    """Hold the lock file of service `name`; the kernel releases it however the process ends.

    A directory that is not there yet is made, and `group` let into it.
    Raises UserError if another instance holds it, or the directory cannot be used.
    """
    path = run_directory / f"{name}.lock"
    try:
        if not run_directory.exists():
            _make_directory(run_directory, group)
        # Neither writable nor private: root, by hand, may be the first to make it, and the service's user follows.
        # Nor a link: what root opens in a directory of the service's user must be what it says.
        lock = os.open(path, os.O_CREAT | os.O_RDONLY | os.O_NOFOLLOW)
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


def _make_directory(directory: Path, group: SocketGroup | None) -> None:
    gid = -1 if group is None else group.gid
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    os.chown(directory, -1, gid)
    # Not left to the umask, which may keep the group out.
    directory.chmod(0o750)


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
