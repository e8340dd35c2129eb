"""Ctrl-C and SIGTERM: end the work at once, but never the clean-up after it."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived. Not an Exception, so that nothing handles it by accident."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def raise_on_signals() -> None:
    """From now on the first SIGINT or SIGTERM raises Interrupted in the main thread; later ones are ignored."""

    def handle(number: int, _frame: FrameType | None) -> None:
        for ignored in _SIGNALS:
            signal.signal(ignored, signal.SIG_IGN)
        raise Interrupted(number)

    for number in _SIGNALS:
        signal.signal(number, handle)


@contextmanager
def postponed() -> Iterator[None]:
    """Deliver SIGINT and SIGTERM after the block: a tear-down cut short would leave namespaces behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    previous = {number: signal.signal(number, lambda n, _frame: pending.append(n)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if pending:
            signal.raise_signal(pending[0])
