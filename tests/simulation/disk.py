"""The disk of the modelled host: full, and as a kill or a loss of power leaves it."""

from __future__ import annotations

import math
import os
import resource
import shutil
import sqlite3
import struct
import sys
import warnings
from collections import deque
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Final

import mptcp_throttle.durable_file
import mptcp_throttled.accounting.history
import mptcp_throttled.accounting.ledger_rows

WRITTEN_BACK_SECONDS: Final = 35.0
"""Linux writes a page 30 s after its change, and looks every 5 s (vm.dirty_expire_centisecs and its sibling)."""

FILES: Final = frozenset({mptcp_throttle.durable_file.__file__})
"""The code that writes files other than the database."""

DATABASE: Final = frozenset(
    {mptcp_throttled.accounting.history.__file__, mptcp_throttled.accounting.ledger_rows.__file__}
)
"""The code that writes the database."""
_FRAMES: Final = struct.Struct("=I")
_MX_FRAME: Final = 16
"""Where the index of the log (sqlite.org/walformat.html) has the number of its last valid frame."""

_WAL_HEADER, _FRAME = 32, 24 + 4096
_NOTED: Final = 61
_SALT: Final = slice(16, 24)


class Killed(BaseException):
    """The daemon has been killed at this line."""


def full_disk(*, is_full: bool) -> AbstractContextManager[None]:
    """While it `is_full`, this process can write to no file."""
    return _without_room() if is_full else nullcontext()


@contextmanager
def _without_room() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def killed_at(line: int, code: Container[str], action: Callable[[], object], keep: Callable[[], None]) -> bool:
    """Whether an action executes so many lines of the code in these files: it is killed there, after `keep`."""
    left = line

    def each_line(_frame: FrameType, event: str, _argument: Any) -> Any:  # noqa: ANN401
        nonlocal left
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                keep()
                # The kernel closes the files of a killed process.
                warnings.simplefilter("ignore", ResourceWarning)
                raise Killed
        return each_line

    def each_call(frame: FrameType, _event: str, _argument: Any) -> Any:  # noqa: ANN401
        return each_line if frame.f_code.co_filename in code else None

    before = sys.gettrace()
    with warnings.catch_warnings():
        sys.settrace(each_call)
        try:
            action()
        except Killed:
            return True
        finally:
            sys.settrace(before)
    return False


class WriteAheadLog:
    """How much of the log of a database was written when, so that a loss of power can take what is younger."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, bytes, int]] = deque(maxlen=_NOTED)

    def note(self, state: Path, now: float) -> None:
        """A transaction has been written at `now`, in monotonic seconds."""
        try:
            salt = _read(f"{state}/history.sqlite-wal", _WAL_HEADER)[_SALT]
            index = _read(f"{state}/history.sqlite-shm", _MX_FRAME + _FRAMES.size)
            frames = _FRAMES.unpack(index[_MX_FRAME:])[0]
        except (OSError, struct.error):
            return
        self._seen.append((now, salt, _WAL_HEADER + frames * _FRAME))

    def tear(self, state: Path, now: float, random: Random) -> None:
        """Leave of the log what is on the disk for sure, and perhaps some of the rest."""
        if not self._seen:
            return
        _, salt, end = self._seen[-1]
        sure = [size for at, s, size in self._seen if s == salt and at <= now - WRITTEN_BACK_SECONDS]
        # What an earlier generation of the log had is in the database itself, which was synchronised before.
        first = [size for _, s, size in self._seen if s == salt]
        begin = sure[-1] if sure else min(first)
        left = random.randint(min(begin, end), end)
        with (state / "history.sqlite-wal").open("r+b") as file:
            file.truncate(left)
        self._seen.clear()
        self._seen.append((-math.inf, salt, left))


def _read(path: str, size: int) -> bytes:
    """The first bytes of a file: at each writing, for which pathlib is slow. Raises OSError."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, size)
    finally:
        os.close(file)


def copied(state: Path, to: Path, *, power_lost: bool = False) -> Path:
    """A copy of the state as another process would find it now."""
    shutil.copytree(state, to)
    if power_lost:
        (to / "history.sqlite-shm").unlink(missing_ok=True)
    return to


def make_older(database: Path) -> None:
    """Let a database be as versions before have written it."""
    if not database.exists():
        return
    with closing(sqlite3.connect(database)) as connection, connection:
        present = {name for _, name, *_ in connection.execute("PRAGMA table_info(traffic)")}
        for column in ("held_back_ms", "rtt_samples"):
            if column in present:
                connection.execute(f"ALTER TABLE traffic DROP COLUMN {column}")


def damage(database: Path) -> None:
    """Let it be no database any more."""
    for each in (database, Path(f"{database}-wal")):
        if each.exists():
            with each.open("r+b") as file:
                file.write(b"damaged " * 64)
