"""Logging to stderr: the level, and bounds on the number of lines, whatever clients send.

A line below WARNING may name its `subject`: a connection, or the clients of a socket. In each interval, at most
`SUBJECT_LINES` lines about one subject and `LEVEL_LINES` lines of one level are written; the others are counted, and a
warning at the end of the interval says how many they were. Warnings and errors are always written.

Under systemd, lines have a priority instead of the name of their level, and some have fields (`journal.py`).
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from mptcp_throttle import journal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mptcp_throttle.model import LogLevel

INTERVAL_SECONDS: Final = 10.0
SUBJECT_LINES: Final = 20
LEVEL_LINES: Final = 1000
"""A third of what journald accepts of a service by default (10 000 lines in 30 s: journald.conf(5), RateLimitBurst=),
so that it drops no error."""

_NAMED_SUBJECTS: Final = 3

_VERBOSE: Final = ("pyroute2", "asyncio")
"""Libraries that log each message at the level debug."""

_PRIORITIES: Final = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
    (logging.NOTSET, 7),
)

_log = logging.getLogger("mptcp-throttle")


def configure() -> None:
    """Log to stderr, or to the journal if that is the same; from INFO, until `set_level`."""
    if journal.is_journal(sys.stderr.fileno()):
        handler: logging.Handler = JournalHandler()
    else:
        handler = logging.StreamHandler()
        stamp = "%(asctime)s.%(msecs)03d "
        handler.setFormatter(logging.Formatter(f"{stamp}%(levelname)s %(message)s", "%H:%M:%S"))
    bounds = LineBounds(time.monotonic, _call_later)
    handler.addFilter(bounds)
    atexit.register(bounds.end_interval)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in _VERBOSE:
        logging.getLogger(name).setLevel(logging.WARNING)


def set_level(level: LogLevel) -> None:
    """Write lines of this level and above."""
    logging.getLogger().setLevel(level.upper())


def about(subject: str) -> Mapping[str, object]:
    """The `extra` of a line about this subject."""
    return {"subject": subject}


def with_fields(fields: Mapping[str, str] | None, subject: str = "") -> Mapping[str, object]:
    """The `extra` of a line that has these fields in the journal, if any; with a `subject`, it is about that, too."""
    return {"fields": fields, "subject": subject}


class JournalHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes lines to stderr, which is the journal: each with its priority, and those with fields as datagrams.

    If the journal does not take a datagram, its line goes to stderr, without the fields, and so do those of the next
    seconds: to wait for each would take too long.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(message)s"))
        # What systemd calls the lines on stderr of the same program.
        self._identifier = os.path.basename(sys.argv[0])
        self._next_try = -math.inf

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        fields = getattr(record, "fields", None)
        if fields is not None and time.monotonic() >= self._next_try:
            if journal.send({**self._own_fields(record), **fields}):
                return
            self._next_try = time.monotonic() + INTERVAL_SECONDS
        super().emit(record)

    def _own_fields(self, record: logging.LogRecord) -> dict[str, str]:
        return {
            "MESSAGE": super().format(record),
            "PRIORITY": str(_priority(record.levelno)),
            "SYSLOG_IDENTIFIER": self._identifier,
        }

    def format(self, record: logging.LogRecord) -> str:
        """The line with its priority before it, as sd-daemon(3) describes."""
        return f"<{_priority(record.levelno)}>{super().format(record)}"


def _priority(level: int) -> int:
    """The priority of syslog(3)."""
    return next(priority for least, priority in _PRIORITIES if level >= least)


class LineBounds(logging.Filter):
    """Passes the lines that the bounds allow, for any thread. It needs a timer: `call_later(seconds, function)`."""

    def __init__(self, clock: Callable[[], float], call_later: Callable[[float, Callable[[], None]], object]) -> None:
        super().__init__()
        self._clock = clock
        self._call_later = call_later
        self._lock = threading.Lock()
        self._ends_at = -math.inf
        # By level and subject; of all lines of a level with the subject "".
        self._written: Counter[tuple[int, str]] = Counter()
        self._suppressed: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write this line."""
        if record.levelno >= logging.WARNING:
            return True
        subject, level = getattr(record, "subject", ""), record.levelno
        with self._lock:
            now = self._clock()
            if now >= self._ends_at and not self._suppressed:
                self._written.clear()
                self._ends_at = now + INTERVAL_SECONDS
            is_subject_full = subject and self._written[level, subject] >= SUBJECT_LINES
            if is_subject_full or self._written[level, ""] >= LEVEL_LINES:
                if not self._suppressed:
                    self._call_later(max(self._ends_at - now, 0.0), self.end_interval)
                # Only subjects with a share of the lines that were written: they are few.
                self._suppressed[subject if is_subject_full else ""] += 1
                return False
            self._written.update({(level, ""), (level, subject)})
            return True

    def end_interval(self) -> None:
        """Say what was not written, if anything."""
        with self._lock:
            suppressed, self._suppressed = self._suppressed, Counter()
            self._ends_at = -math.inf
        if not suppressed:
            return
        total, unnamed = suppressed.total(), suppressed.pop("", 0)
        named = suppressed.most_common(_NAMED_SUBJECTS)
        unnamed += suppressed.total() - sum(count for _, count in named)
        counts = [f"{count} about {subject}" for subject, count in named] + [f"{unnamed} others"] * bool(unnamed)
        _log.warning("%d log lines of the last %g s were not written: %s", total, INTERVAL_SECONDS, ", ".join(counts))


def _call_later(seconds: float, function: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
