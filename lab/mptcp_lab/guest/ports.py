"""The guest's serial ports, for the command's output and exit status. start.sh has the other ends."""

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
    """Passes on the command's output, up to the mark that start.sh writes after it.

    A port has no end of file, and one may be megabytes behind the other: the exit status may arrive first.
    """

    def __init__(self, sink: Sink, end_mark: bytes) -> None:
        self._sink = sink
        self._end_mark = end_mark
        self._kept = b""
        self.complete = False

    def feed(self, data: bytes) -> None:
        """Take received data; a possible start of the mark is kept until more data decides."""
        text, self._kept = self._split(self._kept + data)
        self.complete = self._kept == self._end_mark
        self._sink(text)

    def break_off(self) -> None:
        """The stream has ended: pass on what was kept, unless it is the mark."""
        if not self.complete:
            self._sink(self._kept)

    def _split(self, data: bytes) -> tuple[bytes, bytes]:
        longest = min(len(data), len(self._end_mark))
        kept = next(size for size in range(longest, -1, -1) if data.endswith(self._end_mark[:size]))
        return data[: len(data) - kept], data[len(data) - kept :]


class Report:
    """A line when the command begins, and another with its exit status when it has ended."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> None:
        """Take received data."""
        self._data += data

    @property
    def begun(self) -> bool:
        """Whether the command has begun."""
        return b"\n" in self._data

    @property
    def complete(self) -> bool:
        """Whether the exit status has arrived."""
        return self._data.count(b"\n") == 2

    @property
    def status(self) -> int:
        """The exit status, once it is complete."""
        return int(self._data.splitlines()[1])


def relay(ports: Mapping[BinaryIO, Output | Report], deadline: float) -> None:
    """Feed every port from its stream, until it is complete or its stream ends.

    Raises TimeoutError at `deadline` (monotonic clock).
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
