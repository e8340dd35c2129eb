"""Observes what flows, in a thread of its own, and compares it with what is applied (`enforcement`)."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import FourTuple
from mptcp_throttle.ports import Ports
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.history import FLUSH_SECONDS
from mptcp_throttled.kernel.sockets.proxy_sockets import SocketReader
from mptcp_throttled.observing import overflow
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.observing.overflow import Overflow
from mptcp_throttled.reporting.event_log import EventLog
from mptcp_throttled.reporting.eventlog import enforcement_event
from mptcp_throttled.reporting.instruments import count_errors
from mptcp_throttled.vocabulary.observation import Observation
from mptcp_throttled.vocabulary.snapshot import Snapshots
from mptcp_throttled.vocabulary.traffic import SteeredTotals

_log = logging.getLogger("mptcp-throttled")

_INTERVAL_SECONDS: Final = 1.0
# What a client that begins to send can use of a budget before that is seen.
_BUDGETS_INTERVAL_SECONDS: Final = 0.4
_SHORTEST_PAUSE_SECONDS: Final = 0.05
_SOONER_PAUSE_FACTOR: Final = 9
_STOP_SECONDS: Final = 2.0
# With many subflows an observation takes long: the pause is this many times its processor time, within these bounds.
_PAUSE_FACTOR: Final = 100
# The history is written by observations, and twice this time is the most that a killed daemon may lose of it.
_MAX_PAUSE_SECONDS: Final = FLUSH_SECONDS


def pause_after(used: float, next_change: float | None) -> float:
    """How many seconds to wait after an observation that took `used` seconds of processor time.

    `next_change` is in how many seconds a rule may need another one, as when a stage of a budget is reached; None: no
    rule depends on observations.
    """
    interval = _INTERVAL_SECONDS if next_change is None else _BUDGETS_INTERVAL_SECONDS
    pause = min(max(interval, used * _PAUSE_FACTOR), _MAX_PAUSE_SECONDS)
    return (
        pause
        if next_change is None
        else min(pause, max(next_change, used * _SOONER_PAUSE_FACTOR, _SHORTEST_PAUSE_SECONDS))
    )


class Observer(threading.Thread):
    """Observes at once, then every 1 to 5 s, more often with budgets, until `stop()`.

    It keeps `accounts` up to date, and says in `events` when rates are not enforced.

    `snapshots` has what is applied, `class_bytes` gives the bytes of each class by minor, `steered` what
    steering has counted of subflows, `acknowledged` what the program for uplinks has seen acknowledged. `changed` is
    called when what paths lack of an overflow has changed.
    """

    def __init__(
        self,
        ports: Ports,
        snapshots: Snapshots,
        class_bytes: Callable[[], Mapping[int, int]],
        steered: Callable[[], Mapping[FourTuple, SteeredTotals]],
        acknowledged: Callable[[], Mapping[FourTuple, int]],
        accounts: Accounts,
        events: EventLog,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name="observer", daemon=True)
        self._class_bytes = class_bytes
        self._steered = steered
        self._acknowledged = acknowledged
        self._ports = ports
        self._sockets = SocketReader(ports)
        self._snapshots = snapshots
        self._accounts = accounts
        self._events = events
        self._changed = changed
        self._stopping = threading.Event()
        self.enforcement = Enforcement()
        self.overflow = Overflow()

    def run(self) -> None:
        """Observe until `stop()`."""
        pause = 0.0
        while not self._stopping.wait(pause):
            used = time.thread_time()
            try:
                self._observe()
            except KernelError as error:
                _log.debug("rates cannot be observed: %s", error)
                count_errors("observation")
            pause = pause_after(time.thread_time() - used, self._next_change())
        with suppress(KernelError):
            self._observe()
        self._accounts.close()

    def _next_change(self) -> float | None:
        """In how many seconds a rule may need another observation; None: none does."""
        ahead = self._accounts.seconds_to_next_stage
        if any(network.overflow is not None for network in self._snapshots.snapshot.networks):
            return min(overflow.INTERVAL_SECONDS, math.inf if ahead is None else ahead)
        return ahead

    def stop(self) -> None:
        """End the thread, and wait until what it has counted is written, unless that takes too long."""
        self._stopping.set()
        if self.is_alive():
            self.join(_STOP_SECONDS)

    def _observe(self) -> None:
        snapshot = self._snapshots.snapshot
        classes: Mapping[int, int] = {}
        if snapshot.has_htb:
            with suppress(KernelError):  # the interface may be gone, or HTB with it
                classes = self._class_bytes()
        before = self.enforcement
        on_all_ports = any(d.subflow.ends.proxy.port not in self._ports for d in snapshot.all_decisions())
        steered, acknowledged = self._steered(), self._acknowledged()
        sockets = self._sockets.read(on_all_ports=on_all_ports)
        at = time.monotonic()
        after = before.after(Observation(at, sockets, classes, acknowledged), snapshot)
        event = enforcement_event(before.not_enforced, after.not_enforced, snapshot)
        if event is not None:
            self._events.say(event)
        self.enforcement = after
        self._accounts.look(sockets, snapshot, steered)
        if self.overflow.look(at, sockets, snapshot):
            self._changed()
