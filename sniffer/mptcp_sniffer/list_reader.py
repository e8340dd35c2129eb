"""Reads the kernel's list of subflows: at the start, now and then, and a moment after anything that was in doubt."""

from __future__ import annotations

import logging
import select
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from mptcp_sniffer.kernel_list import KernelEvents, KernelList, KernelListUnavailable, list_subflows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mptcp_throttle.config.schema import SnifferSection
    from mptcp_throttle.rpc import Json

_TICK_SECONDS: Final = 0.1
_SOON_SECONDS: Final = 0.7
"""Longer than `tracker` takes segments for newer than the listing."""

_MAX_SHARE: Final = 0.1
"""The share of time that listing may take: the kernel walks all its sockets for it."""

_HOUSEKEEPING_SECONDS: Final = 1.0

_log = logging.getLogger("mptcp-sniffer")


class ListReader:
    """Calls `take` with the kernel's listing, or with None where there is none, about once a second or less often.

    A kernel that cannot be asked is said once in the log; asking goes on.
    """

    def __init__(
        self, ports: Sequence[int], settings: SnifferSection, take: Callable[[KernelList | None], None]
    ) -> None:
        self._ports = ports
        self._settings = settings
        self._take = take
        self._stop = threading.Event()
        self._soon = threading.Event()
        self._problem: str | None = None
        self._listed: tuple[int, float] | None = None

    def soon(self) -> None:
        """Something happened that only the kernel can confirm."""
        self._soon.set()

    def status(self) -> Json:
        """`{enabled, problem, subflows, age_seconds}`."""
        subflows, at = self._listed or (None, None)
        return {
            "enabled": self._settings.kernel_view,
            "problem": self._problem,
            "subflows": subflows,
            "age_seconds": None if at is None else time.time() - at,
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        """Read the list now, and from then on in a thread of its own."""
        self._read()
        thread = threading.Thread(target=self._run, name="audit")
        thread.start()
        watcher = threading.Thread(target=self._watch, name="kernel-events")
        if self._settings.kernel_view and self._settings.kernel_events:
            watcher.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            if watcher.ident is not None:
                watcher.join()

    def _run(self) -> None:
        due = time.monotonic() + self._settings.kernel_list_interval
        tidy = 0.0
        while not self._stop.wait(_TICK_SECONDS):
            began = time.monotonic()
            if self._soon.is_set():
                self._soon.clear()
                due = min(due, began + _SOON_SECONDS)
            if began >= tidy:
                self._take(None)
                tidy = began + _HOUSEKEEPING_SECONDS
            if began >= due:
                self._read()
                took = time.monotonic() - began
                due = began + max(self._settings.kernel_list_interval, took / _MAX_SHARE)

    def _read(self) -> None:
        if not self._settings.kernel_view:
            return
        try:
            view = list_subflows(self._ports)
        except KernelListUnavailable as error:
            self._listed = None
            self._report(f"the kernel's list of subflows cannot be read ({error})")
            return
        self._report(None)
        self._listed = len(view.subflows), view.at
        self._take(view)

    def _report(self, problem: str | None) -> None:
        if problem != self._problem and problem is not None:
            _log.warning("%s: only what is captured counts", problem)
        self._problem = problem

    def _watch(self) -> None:
        try:
            with KernelEvents() as events:
                while not self._stop.is_set():
                    if select.select([events], [], [], _HOUSEKEEPING_SECONDS)[0]:
                        events.drain()
                        self._soon.set()
        except (KernelListUnavailable, OSError) as error:
            _log.warning("kernel events are not available: %s", error)
