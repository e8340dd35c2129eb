import logging
import subprocess
import sys
from collections.abc import Callable

import pytest

from mptcp_throttle import logs
from mptcp_throttle.logs import LEVEL_LINES, SUBJECT_LINES, LineBounds
from mptcp_throttle.model import LogLevel


class Timer:
    """A clock that a test moves, and a timer that it lets expire."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def clock(self) -> float:
        return self.now

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        self.calls.append((self.now + seconds, function))

    def expire(self) -> None:
        ((self.now, function),) = self.calls
        self.calls = []
        function()


@pytest.fixture
def timer() -> Timer:
    return Timer()


@pytest.fixture
def bounds(timer: Timer) -> LineBounds:
    return LineBounds(timer.clock, timer.call_later)


def written(bounds: LineBounds, count: int, subject: str = "", level: int = logging.INFO) -> int:
    """Of `count` such lines, how many are written."""
    record = logging.LogRecord("any", level, "", 0, "line", None, None)
    record.__dict__.update(logs.about(subject) if subject else {})
    return sum(bounds.filter(record) for _ in range(count))


def test_log_lines_about_one_subject_are_bounded(bounds: LineBounds) -> None:
    assert written(bounds, 500, "token=a") == SUBJECT_LINES
    assert written(bounds, 5, "token=b") == 5
    assert written(bounds, 100) == 100


def test_log_lines_of_one_level_are_bounded(bounds: LineBounds) -> None:
    assert sum(written(bounds, 1, f"token={number}") for number in range(5000)) == LEVEL_LINES
    assert written(bounds, 1, level=logging.DEBUG) == 1


def test_log_lines_of_warnings_and_errors_are_not_bounded(bounds: LineBounds) -> None:
    assert written(bounds, 5000, "token=a") == SUBJECT_LINES
    for level in (logging.WARNING, logging.ERROR, logging.CRITICAL):
        assert written(bounds, 5000, "token=a", level) == 5000


def test_log_lines_that_were_not_written_are_summarised(
    bounds: LineBounds, timer: Timer, caplog: pytest.LogCaptureFixture
) -> None:
    written(bounds, 5, "token=quiet")
    timer.now += 4
    for number in range(5):
        written(bounds, SUBJECT_LINES + 10 * (number + 1), f"token={number}")
    written(bounds, LEVEL_LINES)
    assert caplog.messages == []
    timer.expire()
    assert timer.now == 1010
    assert caplog.record_tuples == [
        (
            "mptcp-throttle",
            logging.WARNING,
            "255 log lines of the last 10 s were not written:"
            " 50 about token=4, 40 about token=3, 30 about token=2, 135 others",
        )
    ]
    assert written(bounds, 500, "token=4") == SUBJECT_LINES
    assert len(timer.calls) == 1


def test_log_interval_without_suppressed_lines_needs_no_timer(bounds: LineBounds, timer: Timer) -> None:
    for _ in range(5):
        assert written(bounds, SUBJECT_LINES, "token=a") == SUBJECT_LINES
        timer.now += 10
    assert timer.calls == []


def test_log_memory_is_bounded_while_lines_are_suppressed(bounds: LineBounds) -> None:
    for number in range(20_000):
        written(bounds, 1, f"token={number}")
    assert len(bounds._written) == LEVEL_LINES + 1
    assert len(bounds._suppressed) == 1


@pytest.mark.parametrize("level", LogLevel)
def test_log_level_is_the_lowest_that_is_written(level: LogLevel) -> None:
    script = f"""
import logging
from mptcp_throttle import logs
from mptcp_throttle.model import LogLevel
logs.configure()
logs.set_level(LogLevel({str(level)!r}))
for name in ("debug", "info", "warning", "error"):
    getattr(logging.getLogger("any"), name)("a line")
"""
    result = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=True)
    expected = list(LogLevel)[list(LogLevel).index(level) :]
    assert [line.split()[1].lower() for line in result.stderr.splitlines()] == expected


def test_log_lines_suppressed_at_the_end_are_summarised() -> None:
    script = """
import logging
from mptcp_throttle import logs
logs.configure()
for _ in range(30):
    logging.getLogger("any").info("a line", extra=logs.about("token=a"))
"""
    result = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=True)
    assert len(result.stderr.splitlines()) == SUBJECT_LINES + 1
    assert "10 log lines of the last 10 s were not written: 10 about token=a" in result.stderr
