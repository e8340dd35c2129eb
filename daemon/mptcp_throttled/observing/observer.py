"""The thread that observes what flows, and compares it with what is applied (`enforcement`)."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from typing import Final, Protocol

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import FourTuple
from mptcp_throttle.ports import Ports
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.history import FLUSH_SECONDS
from mptcp_throttled.observing import shared_demand
from mptcp_throttled.observing.charging import Charging
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.observing.overflow import Overflow
from mptcp_throttled.observing.shared_demand import SharedDemand
from mptcp_throttled.policy.shortfall import INTERVAL_SECONDS
from mptcp_throttled.reporting.event_log import EventLog
from mptcp_throttled.reporting.instruments import count_errors
from mptcp_throttled.reporting.step_log import enforcement_event
from mptcp_throttled.vocabulary.clock import Clock
from mptcp_throttled.vocabulary.fleet import RateKey
from mptcp_throttled.vocabulary.observation import Observation, SocketState
from mptcp_throttled.vocabulary.snapshot import Snapshot, Snapshots
from mptcp_throttled.vocabulary.traffic import ClosedSubflow, SteeredTotals

_log = logging.getLogger("mptcp-throttled")

_INTERVAL_SECONDS: Final = 1.0
# It bounds what a client that begins to send can use of a budget before that is seen.
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

    `next_change` is in how many seconds a rule may need another observation, as when a stage of a budget is reached;
    None: no rule depends on observations.
    """
    interval = _INTERVAL_SECONDS if next_change is None else _BUDGETS_INTERVAL_SECONDS
    pause = min(max(interval, used * _PAUSE_FACTOR), _MAX_PAUSE_SECONDS)
    return (
        pause
        if next_change is None
        else min(pause, max(next_change, used * _SOONER_PAUSE_FACTOR, _SHORTEST_PAUSE_SECONDS))
    )


def next_observation(snapshot: Snapshot, ahead: float | None) -> float | None:
    """In how many seconds a rule may need another observation; None: no rule depends on observations.

    `ahead` is in how many seconds a stage of a budget may be reached; None: no budget is counted. Overflows and shared
    rates need observations only while clients are connected.
    """
    if not snapshot.connections:
        return ahead
    stage = math.inf if ahead is None else ahead
    if any(network.overflow is not None for network in snapshot.networks):
        return min(INTERVAL_SECONDS, stage)
    if any(network.shared for network in snapshot.networks):
        return min(shared_demand.INTERVAL_SECONDS, stage)
    return ahead


class Sockets(Protocol):
    """Reads the proxy's sockets."""

    def read(self, *, on_all_ports: bool) -> dict[FourTuple, SocketState]:
        """The sockets that can send, on the proxy's ports or on all ports. Raises KernelError."""


class Observer(threading.Thread):
    """Observes at once, then every 1 to 5 s, more often with budgets, until `stop()`.

    It keeps `accounts` up to date, and says in `events` when rates are not enforced.

    It reads `sockets`; `class_bytes` gives the bytes of each class by minor, `steered` what steering has counted of
    subflows, `acknowledged` the bytes of uplinks that their program has seen acknowledged, `closed` the subflows that
    have closed since the last call. `snapshots` has what is applied. `changed` is called when a shortfall has changed.
    `charging` keeps allowances in kernel programs. `want` is given what clients want of shared rates, and the time in
    monotonic seconds; None: no rate is shared.
    """

    def __init__(
        self,
        ports: Ports,
        sockets: Sockets,
        snapshots: Snapshots,
        class_bytes: Callable[[], Mapping[int, int]],
        steered: Callable[[], Mapping[FourTuple, SteeredTotals]],
        acknowledged: Callable[[], Mapping[FourTuple, int]],
        accounts: Accounts,
        events: EventLog,
        changed: Callable[[], None],
        clock: Clock,
        closed: Callable[[], Iterable[ClosedSubflow]] = tuple,
        charging: Charging | None = None,
        want: Callable[[Mapping[RateKey, int], float], None] | None = None,
    ) -> None:
        super().__init__(name="observer", daemon=True)
        self._class_bytes = class_bytes
        self._steered = steered
        self._acknowledged = acknowledged
        self._ports = ports
        self._sockets = sockets
        self._clock = clock
        self._snapshots = snapshots
        self._accounts = accounts
        self._events = events
        self._changed = changed
        self._closed = closed
        self._charging = charging
        self._want = want
        self._is_due = threading.Event()
        self._stopping = threading.Event()
        self._failure: str | None = None
        self.enforcement = Enforcement()
        self.overflow = Overflow()
        self._demand = SharedDemand()

    def run(self) -> None:
        """Observe until `stop()`."""
        pause = least = 0.0
        while not self._is_stopped_after(pause, least):
            used = time.thread_time()
            self._try_to_observe()
            used = time.thread_time() - used
            pause, least = pause_after(used, self.next_change()), used * _SOONER_PAUSE_FACTOR
        self._try_to_observe()
        self._accounts.close()

    def _try_to_observe(self) -> None:
        try:
            self.observe()
        except KernelError as error:
            _log.debug("rates cannot be observed: %s", error)
            count_errors("observation")
        except Exception as error:
            # Without this thread nothing would be counted, and no period of a budget would end.
            self._note_failure(f"{type(error).__name__}: {error}")

    def _note_failure(self, problem: str) -> None:
        if problem != self._failure:
            self._failure = problem
            _log.error("an observation failed, and the next one tries again: %s", problem)
        count_errors("observation")

    def next_change(self) -> float | None:
        """In how many seconds a rule may need another observation; None: none does."""
        return next_observation(self._snapshots.snapshot, self._accounts.seconds_to_next_stage)

    def _is_stopped_after(self, pause: float, least: float) -> bool:
        """Wait for `pause` seconds, or for `look_now`, but at least for `least`."""
        least = min(least, pause)
        self._stopping.wait(least)
        self._is_due.wait(pause - least)
        self._is_due.clear()
        return self._stopping.is_set()

    def look_now(self) -> None:
        """End the present pause; for any thread."""
        self._is_due.set()

    def stop(self) -> None:
        """End the thread, and wait until what it has counted is written, unless that takes too long."""
        self._stopping.set()
        self._is_due.set()
        if self.is_alive():
            self.join(_STOP_SECONDS)

    def observe(self) -> None:
        """Observe once. Raises KernelError."""
        snapshot = self._snapshots.snapshot
        classes: Mapping[int, int] = {}
        if snapshot.has_htb:
            with suppress(KernelError):  # the interface may be gone, or HTB with it
                classes = self._class_bytes()
        before = self.enforcement
        on_all_ports = any(d.subflow.ends.proxy.port not in self._ports for d in snapshot.all_decisions())
        steered, acknowledged = self._steered(), self._acknowledged()
        with nullcontext() if self._charging is None else self._charging.reading_sockets():
            sockets = self._sockets.read(on_all_ports=on_all_ports)
            # Read after the sockets: a subflow that has closed in between is among them, or is reported here.
            self._accounts.note_closed(self._closed())
        at = self._clock.monotonic()
        after = before.after(Observation(at, sockets, classes, acknowledged), snapshot)
        event = enforcement_event(before.not_enforced, after.not_enforced, snapshot)
        if event is not None:
            self._events.say(event)
        self.enforcement = after
        self._accounts.observe(sockets, snapshot, steered)
        if self._charging is not None:
            self._charging.update()
        if self.overflow.observe(at, sockets, snapshot):
            self._changed()
        if self._want is not None:
            self._want(self._demand.observe(at, sockets, snapshot), at)
