"""What the programs share: exit status, signals, the single-instance lock, capabilities."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
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


# include/uapi/linux/capability.h
CAP_NET_ADMIN: Final = 12
CAP_NET_RAW: Final = 13

# Of standard output: a closed pipe and a full disk. The code that uses other files translates their errors itself.
_OUTPUT_ERRORS: Final = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO})

_M_MMAP_THRESHOLD: Final = -3  # malloc.h
_LARGE_BLOCK_BYTES: Final = 2**17  # the initial value in glibc

_SWITCH_SECONDS: Final = 0.0001
# Small young generations, since collection stops all threads; full collections rarely: our tables have no cycles.
_GARBAGE_THRESHOLDS: Final = (700, 4, 12500)


def run(main: Callable[[], None]) -> int:
    """Run a program's `main` and return its exit status; a UserError is printed to stderr.

    So is an error of standard output, except that a closed pipe (`| head`) ends the program silently.
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
        # At exit Python would try to write the rest of the buffer again, and print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return EX_BROKEN_PIPE
        sys.stderr.write(f"standard output: {error.strerror}\n")
        return os.EX_IOERR
    return os.EX_OK


def prefer_latency() -> None:
    """Shorten the time for which one thread or the garbage collector blocks the other threads.

    Python's defaults: a thread keeps the interpreter lock for 5 ms, and a full collection, which takes half a second
    with millions of objects, comes whenever their number has grown by a quarter.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)


def return_freed_memory() -> None:
    """Return large blocks to the kernel when they are freed.

    glibc raises the threshold up to 32 MB when a block of that size is freed (mallopt(3), M_MMAP_THRESHOLD), and a
    growing table frees many such blocks.
    """
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)


def on_stop_signal(stop: Callable[[], None]) -> None:
    """Call `stop` at SIGTERM and SIGINT, between any two instructions of the main thread."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


def on_hand_over_signal(hand_over: Callable[[], None]) -> None:
    """Call `hand_over` at SIGUSR1 (`RestartKillSignal=` of the unit), as `on_stop_signal` does."""
    signal.signal(signal.SIGUSR1, lambda *_: hand_over())


def on_reload_signal(reload: Callable[[], None]) -> None:
    """Call `reload` in a separate thread after SIGHUP; several signals in quick succession may cause one call."""
    # SimpleQueue.put is reentrant: the signal handler may interrupt itself.
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
def single_instance(directory: Path, name: str, group: SocketGroup | None = None) -> Iterator[None]:
    """Hold the lock file of service `name`; the kernel releases it when the process ends.

    A missing directory is made, accessible to `group`. Raises UserError if another instance holds the lock, or if the
    directory cannot be used.
    """
    path = directory / f"{name}.lock"
    try:
        _make_directory(directory, group)
        lock = _open_lock(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be opened: {error.strerror}", os.EX_NOPERM) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{path}: {name} is running already", os.EX_TEMPFAIL) from error
        yield
    finally:
        os.close(lock)


def _make_directory(directory: Path, group: SocketGroup | None) -> None:
    """Make a directory, and its parent, as our tmpfiles.d does. Files that are made there have its group."""
    if directory.exists():
        return
    gid = -1 if group is None else group.gid
    # The other service may make the same directories at the same moment.
    if not directory.parent.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.parent.chmod(0o755)
    directory.mkdir(mode=0o750, exist_ok=True)
    os.chown(directory, -1, gid)
    directory.chmod(0o2750)


def _open_lock(path: Path) -> int:
    """Open a lock file that no other user can open, since a user who can open it can hold the lock."""
    # O_NOFOLLOW: the directory may belong to the service's user, who must not make root open another file.
    flags = os.O_RDONLY | os.O_NOFOLLOW
    try:
        lock = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return os.open(path, flags)
    # Root may make it, and the service's own user must be able to open it later.
    with suppress(PermissionError):
        os.fchown(lock, path.parent.stat().st_uid, -1)
    return lock


def require_writable(directory: Path) -> None:
    """Raise UserError if files cannot be created in `directory`."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise UserError(f"{directory}: cannot be written: {error.strerror}", os.EX_NOPERM) from error


def missing_capabilities(**bits: int) -> list[str]:
    """The capabilities, of these (numbers as in linux/capability.h), that this process lacks."""
    with open("/proc/self/status", encoding="ascii") as status:
        effective = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
    return [name for name, bit in bits.items() if not effective >> bit & 1]


def require_capabilities(**bits: int) -> None:
    """Raise UserError with the names of the capabilities (numbers as in linux/capability.h) that this process lacks."""
    missing = missing_capabilities(**bits)
    if missing:
        raise lacks_capability(*missing)


def lacks_capability(*names: str) -> UserError:
    """The error of a program that lacks these capabilities."""
    return UserError(f"missing capability: {', '.join(names)}; run as root or grant it in the unit", os.EX_NOPERM)
