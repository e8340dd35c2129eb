"""The captures on all interfaces of the proxy, each for as long as its interface exists and is up."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Self

from mptcp_sniffer.capture import Capture, CapturedFrame, CaptureLost
from mptcp_throttle.errors import UserError

_GATHER_SECONDS: Final = 0.004
_NAMES_SECONDS: Final = 1.0
"""Between checks for renamed interfaces: a packet socket stays with its interface when that is renamed."""


class InterfaceLost(NamedTuple):
    """An interface went down or was removed; until it is captured again, its traffic is unknown."""

    name: str
    why: str


class Seen(NamedTuple):
    """Frames of all interfaces in the order of their time stamps, and the interfaces that were lost meanwhile."""

    frames: list[tuple[Capture, CapturedFrame]]
    lost: list[InterfaceLost]


class Captures:
    """Captures on `interfaces` by `start`, which opens one capture and raises UserError.

    For a single thread, except `captured`, `missing` and `dropped`, which any thread may use.
    """

    def __init__(self, interfaces: tuple[str, ...], start: Callable[[str], Capture]) -> None:
        self._interfaces = interfaces
        self._start = start
        self._open: dict[str, Capture] = {}
        self._readable = select.poll()
        self._dropped_before = 0
        self._names_due = 0.0

    @property
    def captured(self) -> tuple[str, ...]:
        """The interfaces that are captured now."""
        captures = self._open
        return tuple(name for name in self._interfaces if name in captures)

    @property
    def missing(self) -> tuple[str, ...]:
        """The interfaces that are not captured now."""
        captures = self._open
        return tuple(name for name in self._interfaces if name not in captures)

    def dropped(self) -> int:
        """Frames that the kernel dropped because a buffer was full."""
        return self._dropped_before + sum(capture.dropped() for capture in self._open.values())

    def open_missing(self) -> tuple[list[str], dict[str, UserError]]:
        """Capture on the missing interfaces. Returns those opened, and by name why the rest cannot be captured."""
        opened, refusals = [], {}
        for name in self.missing:
            try:
                capture = self._start(name)
            except UserError as error:
                refusals[name] = error
                continue
            self._open = {**self._open, name: capture}
            self._readable.register(capture, select.POLLIN)
            opened.append(name)
        return opened, refusals

    def frames(self, seconds: float) -> Seen:
        """The frames that have arrived, up to a thousand per interface. Closes the captures that are lost.

        Waits up to `seconds` for a frame. While frames arrive fast, it lets some gather first: to be woken for a frame
        takes longer than to process it.
        """
        if any(capture.is_fast for capture in self._open.values()):
            time.sleep(_GATHER_SECONDS)
        else:
            self._readable.poll(seconds * 1000)
        now = time.monotonic()
        are_names_due = now >= self._names_due
        if are_names_due:
            self._names_due = now + _NAMES_SECONDS
        seen = Seen([], [])
        for name, capture in self._open.items():
            try:
                seen.frames.extend((capture, frame) for frame in capture.frames())
            except CaptureLost as error:
                seen.lost.append(InterfaceLost(name, str(error)))
                continue
            if are_names_due and not capture.has_its_name():
                seen.lost.append(InterfaceLost(name, "renamed or removed"))
        for lost in seen.lost:
            self._close(lost.name)
        if len(self._interfaces) > 1:
            seen.frames.sort(key=lambda pair: pair[1].at)
        return seen

    def _close(self, name: str) -> None:
        capture = self._open[name]
        self._open = {open_name: kept for open_name, kept in self._open.items() if open_name != name}
        self._dropped_before += capture.dropped()
        self._readable.unregister(capture)
        capture.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.captured:
            self._close(name)
