"""The guest's serial ports: what its command writes, and its exit status. The other end of them is start.sh."""

from __future__ import annotations

import os
import selectors
import time
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Sink = Callable[[bytes], object]

NAMES: Final = ("output", "errors", "report")

_PIPE_BYTES: Final = 65536


class Output:
    """Passes on what the command writes, up to the mark that start.sh puts at its end.

    The ports do not say when they have been emptied, and one may be megabytes behind the other.
    """

    def __init__(self, sink: Sink, end_mark: bytes) -> None:
        self._sink = sink
        self._end_mark = end_mark
        self._held = b""
        self.complete = False

    def feed(self, data: bytes) -> None:
        """Take what has arrived; what could be the start of the mark is held back until more comes."""
        text, self._held = self._split(self._held + data)
        self.complete = self._held == self._end_mark
        self._sink(text)

    def break_off(self) -> None:
        """There will be no more."""
        if not self.complete:
            self._sink(self._held)

    def _split(self, data: bytes) -> tuple[bytes, bytes]:
        longest = min(len(data), len(self._end_mark))
        held = next(size for size in range(longest, -1, -1) if data.endswith(self._end_mark[:size]))
        return data[: len(data) - held], data[len(data) - held :]


class Report:
    """The command's exit status."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> None:
        """Take what has arrived."""
        self._data += data

    @property
    def complete(self) -> bool:
        """Whether it has arrived."""
        return self._data.endswith(b"\n")

    @property
    def status(self) -> int:
        """The exit status, once it is complete."""
        return int(self._data)


def relay(ports: Mapping[BinaryIO, Output | Report], deadline: float) -> None:
    """Feed every port from its stream until all are complete, or their streams have ended.

    Raises TimeoutError at the deadline, a time of the monotonic clock.
    """
    with selectors.DefaultSelector() as selector:
        for stream, port in ports.items():
            selector.register(stream, selectors.EVENT_READ, port)
        while selector.get_map():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            for key, _ in selector.select(remaining):
                data = os.read(key.fd, _PIPE_BYTES)
                key.data.feed(data)
                if key.data.complete or not data:
                    selector.unregister(key.fileobj)
