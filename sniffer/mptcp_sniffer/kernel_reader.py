"""Reads the kernel list: at start, once per interval, several times after a request. Follows kernel events."""

from __future__ import annotations

import errno
import logging
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from mptcp_sniffer.kernel_events import KernelEvent, KernelEvents
from mptcp_sniffer.kernel_list import KernelList, KernelListUnavailable, list_subflows
from mptcp_sniffer.stop import Stop
from mptcp_throttle.config.schema import SnifferSection
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.ports import ALL_PORTS, Ports
from mptcp_throttle.rpc import Json

_GATHER_SECONDS: Final = 0.02
"""From a request to the first reading: the kernel's worker closes a subflow later than its segment arrives. Further
requests in this time do not wake the thread."""

_REPEAT_SECONDS: Final = (0.1, 0.3, 0.7)
"""From the first reading after a request to its repetitions. The last comes when no segment is newer than the list
(`tracker`, `_CLOSED_SECONDS`)."""

_PATIENT_SECONDS: Final = 0.5
"""The least time from one reading to the next while `is_patient`."""

_MAX_FRACTION: Final = 0.1
"""The fraction of the time that reading may take: the kernel walks all its TCP sockets for it."""

_HOUSEKEEPING_SECONDS: Final = 1.0
_RESUBSCRIBE_SECONDS: Final = 5.0

_log = logging.getLogger("mptcp-sniffer")


class KernelReader:
    """Calls `deliver` with each kernel list, and once a second with None for housekeeping; `deliver_event` with each
    kernel event.

    The list has the subflows on `ports`. It has those on all ports while `expects_other_ports`, and while no events are
    received: these would report subflows on other ports. While `is_patient`, the list is read at most twice a second.
    If the kernel refuses list or events, that is logged once, and tried again. `stop` ends the threads.
    """

    def __init__(
        self,
        ports: Ports,
        settings: SnifferSection,
        deliver: Callable[[KernelList | None], None],
        deliver_event: Callable[[KernelEvent], None],
        expects_other_ports: Callable[[], bool],
        is_patient: Callable[[], bool],
        stop: Stop,
    ) -> None:
        self._ports = ports
        self._settings = settings
        self._deliver = deliver
        self._deliver_event = deliver_event
        self._expects_other_ports = expects_other_ports
        self._is_patient = is_patient
        self._receives_events = False
        self._stop = stop
        self._requested = threading.Event()
        self._problem: str | None = ""
        self._last: tuple[int, float] | None = None

    def request(self) -> None:
        """Read the list soon. May be called from any thread and at any rate."""
        self._requested.set()

    @property
    def available(self) -> bool:
        """Whether the last attempt to read the list succeeded."""
        return self._problem is None

    def status(self) -> Json:
        """`{enabled, problem, subflows, age_seconds}`."""
        subflows, at = self._last or (None, None)
        return {
            "enabled": self._settings.kernel_view,
            "problem": self._problem or None,
            "subflows": subflows,
            "age_seconds": None if at is None else time.monotonic() - at,
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        """Read the list now, and from then on in a thread."""
        self._read()
        threads = [threading.Thread(target=self._run, name="kernel-list")]
        if self._settings.kernel_view and self._settings.kernel_events:
            threads.append(threading.Thread(target=self._watch_events, name="kernel-events"))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._requested.set()
            for thread in threads:
                thread.join()

    def _run(self) -> None:
        due = [time.monotonic() + self._settings.kernel_list_interval]
        earliest = housekeeping_due = 0.0
        while not self._stop.is_set():
            wait = min(max(due[0], earliest), housekeeping_due) - time.monotonic()
            if self._requested.wait(max(wait, 0.0)):
                if self._stop.wait(_GATHER_SECONDS):
                    return
                self._requested.clear()
                first = time.monotonic()
                due = [first, *(first + seconds for seconds in _REPEAT_SECONDS)]
            began = time.monotonic()
            if began >= housekeeping_due:
                self._deliver(None)
                housekeeping_due = began + _HOUSEKEEPING_SECONDS
            if began >= max(due[0], earliest):
                self._read()
                pause = (time.monotonic() - began) / _MAX_FRACTION
                earliest = began + (max(pause, _PATIENT_SECONDS) if self._is_patient() else pause)
                due = [later for later in due if later > began] or [began + self._settings.kernel_list_interval]

    def _read(self) -> None:
        if not self._settings.kernel_view:
            return
        try:
            is_for_all = self._expects_other_ports() or not self._receives_events
            kernel_list = list_subflows(ALL_PORTS if is_for_all else self._ports)
        except KernelListUnavailable as error:
            self._last = None
            self._set_problem(f"the kernel list cannot be read ({error})")
            return
        self._set_problem(None)
        self._last = len(kernel_list.subflows), kernel_list.at
        self._deliver(kernel_list)

    def _set_problem(self, problem: str | None) -> None:
        if problem != self._problem and problem is not None:
            _log.warning("%s: the table follows the capture alone", problem)
        self._problem = problem

    def _watch_events(self) -> None:
        problem = ""
        while not self._stop.is_set():
            try:
                self._follow_events()
            except KernelError as error:
                if str(error) != problem:
                    problem = str(error)
                    _log.warning("kernel events are not available: %s", problem)
            finally:
                self._receives_events = False
            self._stop.wait(_RESUBSCRIBE_SECONDS)

    def _follow_events(self) -> None:
        with KernelEvents(self._ports) as events:
            self._receives_events = True
            self.request()  # what happened before the subscription
            waiting = select.poll()
            for readable in (events, self._stop):
                waiting.register(readable, select.POLLIN)
            while waiting.poll() and not self._stop.is_set():
                self._receive(events)

    def _receive(self, events: KernelEvents) -> None:
        try:
            for event in events.receive():
                self._deliver_event(event)
        except KernelError as error:
            if error.number != errno.ENOBUFS:
                raise
            self.request()  # the list has what the kernel dropped
