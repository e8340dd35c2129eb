"""Network namespaces and work directories that carry their owner's process id in their name.

`mptl-4711-0-ue` belongs to process 4711. Whatever way that process ended, the next lab removes what it left.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import shutil
import signal
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.interrupts import postponed
from mptcp_lab.lab_errors import LabError
from mptcp_lab.process import run, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PREFIX: Final = "mptl"
_NAME: Final = re.compile(rf"{_PREFIX}-(\d+)-")
_NAMESPACES: Final = Path("/run/netns")  # where ip-netns(8) keeps them
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
# include/uapi/linux/sched.h; os.setns() and os.unshare() are new in Python 3.12
_CLONE_NEWNET: Final = 0x40000000
_CLONE_NEWNS: Final = 0x00020000
# include/uapi/linux/mount.h, include/linux/fs.h
_MS_REC: Final = 0x4000
_MS_SLAVE: Final = 0x80000
_MNT_DETACH: Final = 2
_serial: Final = itertools.count()


@contextmanager
def owned() -> Iterator[str]:
    """A prefix for the names of one lab; at the end of the block all that has it is removed, whatever happened.

    Raises LabError if this machine cannot have a lab.
    """
    if os.geteuid() != 0:
        raise LabError("the lab must be run as root: it builds network namespaces", os.EX_NOPERM)
    if not Path("/proc/sys/net/mptcp").is_dir():
        raise LabError("this kernel has no MPTCP (CONFIG_MPTCP)", os.EX_OSERR)
    remove_stale()
    prefix = f"{_PREFIX}-{os.getpid()}-{next(_serial)}-"
    try:
        yield prefix
    finally:
        with postponed():
            remove(prefix)


def path(namespace: str) -> Path:
    """The file that setns(2) wants."""
    return _NAMESPACES / namespace


def enter(namespace: str) -> None:
    """Move this thread into a network namespace. Raises OSError."""
    with path(namespace).open("rb") as file:
        _enter(file.fileno())


def mount_own_sys() -> None:
    """Let this process see /sys as its network namespace has it, as in `ip netns exec`. Raises OSError."""
    _checked(_LIBC.unshare(_CLONE_NEWNS))
    _checked(_LIBC.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None))
    _checked(_LIBC.umount2(b"/sys", _MNT_DETACH))
    _checked(_LIBC.mount(b"sys", b"/sys", b"sysfs", 0, None))


@contextmanager
def in_namespace(namespace: str) -> Iterator[None]:
    """Inside the block, this thread is in a network namespace. Raises OSError."""
    with Path("/proc/thread-self/ns/net").open("rb") as before:
        enter(namespace)
        try:
            yield
        finally:
            _enter(before.fileno())


def _enter(descriptor: int) -> None:
    _checked(_LIBC.setns(descriptor, _CLONE_NEWNET))


def _checked(status: int) -> None:
    if status != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def make_directory(prefix: str) -> Path:
    """A new directory, readable by the users that Squid and nginx change to."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    directory.chmod(0o755)
    return directory


def remove(prefix: str) -> None:
    """End all processes in the namespaces of that prefix, delete the namespaces and the directory."""
    _remove(lambda name: name.startswith(prefix))


def remove_stale() -> None:
    """Remove what labs of processes that no longer exist left behind."""

    def stale(name: str) -> bool:
        match = _NAME.match(name)
        return match is not None and not Path("/proc", match[1]).exists()

    _remove(stale)


def _remove(wanted: Callable[[str], bool]) -> None:
    for name in filter(wanted, _entries(_NAMESPACES)):
        for pid in _pids(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(partial(_empty, name), f"rid of the processes in {name}")
        run(["ip", "netns", "delete", name])
    temporary = Path(tempfile.gettempdir())
    for name in filter(wanted, _entries(temporary)):
        if (temporary / name).owner() == "root":
            shutil.rmtree(temporary / name)


def _entries(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []


def _empty(namespace: str) -> bool:
    return not _pids(namespace)


def _pids(namespace: str) -> list[int]:
    return [int(pid) for pid in run(["ip", "netns", "pids", namespace]).stdout.split()]
