"""One instance of the daemon, of its own parts, on the modelled kernel: steps and observations happen when told.

The threads of the service are events here: the control loop steps when it is woken or due, the observer looks when its
pause is over, and the follower's calls are carried out by `ModelLink`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from modelled_proxy import ModelProxy
from timeline import VirtualClock

from mptcp_throttle.config.schema import Config
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.control_group import Comparison
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.ledger import Ledger
from mptcp_throttled.accounting.ledger_rows import LedgerChanges
from mptcp_throttled.control.inbox import Message
from mptcp_throttled.control.loop import Loop
from mptcp_throttled.control.operator_state import OperatorStore
from mptcp_throttled.control.requests import Request
from mptcp_throttled.control.running_config import RunningConfig
from mptcp_throttled.control.source import Follower, haste
from mptcp_throttled.observing.charging import Charging
from mptcp_throttled.observing.observer import Observer, pause_after
from mptcp_throttled.reporting.budget_events import budget_events
from mptcp_throttled.reporting.step_events import started
from mptcp_throttled.vocabulary.budgets import BudgetChange
from mptcp_throttled.vocabulary.control_group import NO_CONTROL_GROUP
from mptcp_throttled.vocabulary.operator import Pause
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.traffic import ClosedSubflow, SocketTotals

T = TypeVar("T")

OBSERVATION_SECONDS: Final = 0.05
"""The processor time of an observation on the modelled host: that of a busy proxy, so that pauses are the longest."""


class WatchedHistory(History):
    """A history that says when it writes: `writing` before, `written` after it has succeeded."""

    def __init__(self, path: Path, boot: str) -> None:
        self.writing: Callable[[], None] = lambda: None
        self.written: Callable[[], None] = lambda: None
        super().__init__(path, boot)

    def flush(
        self,
        now: float,
        monotonic: float,
        counted: Mapping[int, SocketTotals],
        budgets: LedgerChanges | None = None,
        *,
        with_tcp: bool = False,
    ) -> bool:
        self.writing()
        is_written = super().flush(now, monotonic, counted, budgets, with_tcp=with_tcp)
        if is_written and budgets is not None:
            self.written()
        return is_written


class ModelDaemon:
    """An instance with a configuration and a state directory. `closed` is given what it hears of closed sockets."""

    def __init__(
        self,
        config: Config,
        state: Path,
        boot: str,
        proxy: ModelProxy,
        clock: VirtualClock,
        closed: Callable[[Sequence[ClosedSubflow]], None],
    ) -> None:
        self._clock = clock
        self._proxy = proxy
        self._tell_closed = closed
        self._woken = True
        self._deadline = 0.0
        self.running = RunningConfig(config, clock.time())
        self.operator = OperatorStore(state / "overrides.json", config.networks, clock, config.proxies)
        self.follower = Follower(self.wake, clock)
        self.history = WatchedHistory(state / "history.sqlite", boot)
        synchronised = (lambda: clock.is_synchronised) if config.daemon.wait_for_clock else None
        self.ledger = Ledger(self.history.budgets(), synchronised)
        self.ledger.configure(config.networks, config.time_zone, clock.time())
        self.accounts = Accounts(self.history, self.ledger, clock, config.proxies, self._note_budgets)
        comparison = Comparison(0.0, self.history.days(), str)
        self.loop = Loop(
            self.running,
            self.operator,
            self.follower,
            proxy.kernel,
            proxy.uplinks,
            proxy.kernel.features,
            clock,
            self._note_closed,
            proxy.steering,
            comparison.note,
            NO_CONTROL_GROUP,
            lambda: self.ledger.spent,
            lambda: self.observer.overflow.shortfalls_at(clock.monotonic()),
        )
        charging = Charging(None, self.accounts, self.loop, config.proxies, clock)
        self.observer = Observer(
            config.proxy.ports,
            proxy,
            self.loop,
            proxy.class_bytes,
            proxy.steered,
            proxy.acknowledged,
            self.accounts,
            self.loop.events,
            self.wake,
            clock,
            self._take_closed,
            charging,
        )
        self.observe_due = clock.now
        self.loop.adopt(proxy.kernel.adopt())
        self.loop.events.say(started(config))

    def _note_closed(self, closed: Iterable[ClosedSubflow]) -> None:
        heard = list(closed)
        self._tell_closed(heard)
        self.accounts.note_closed(heard)

    def _take_closed(self) -> list[ClosedSubflow]:
        heard = self._proxy.kernel.closed_subflows()
        self._tell_closed(heard)
        return heard

    def _note_budgets(self, told: Sequence[BudgetChange]) -> None:
        self.loop.events.say(*budget_events(told, self.loop.snapshot))
        self.wake()

    def wake(self) -> None:
        """Let the loop step at once."""
        self._woken = True

    @property
    def snapshot(self) -> Snapshot:
        """What it knows, and says to be applied."""
        return self.loop.snapshot

    @property
    def step_due(self) -> float:
        """When the loop steps next, in monotonic seconds."""
        return self._clock.now if self._woken else self._deadline

    def step(self, messages: Sequence[Message[Any]] = ()) -> None:
        """One step of the loop."""
        self._woken = False
        self.loop.step(messages)
        self.follower.spacing, self.follower.patience = haste(self.loop.snapshot)
        self._deadline = self.loop.next_deadline

    def ask(self, request: Request[T]) -> T:
        """The answer to a request of an operator. Raises UserError if it is refused."""
        message = Message(request)
        self.step([message])
        return message.answered.result(0)

    def observe(self) -> bool:
        """One observation; whether it succeeded."""
        try:
            self.observer.observe()
        except KernelError:
            return False
        finally:
            self.observe_due = self._clock.now + pause_after(OBSERVATION_SECONDS, self.observer.next_change())
        return True

    @property
    def is_quiet(self) -> bool:
        """Whether nothing of it is in the kernel, and nothing is to be done but when a rule changes by itself."""
        snapshot = self.loop.snapshot
        return not (
            self._woken
            or snapshot.connections
            or snapshot.plan.htb
            or snapshot.applied.htb
            or snapshot.uplinks
            or self._proxy.uplinks.has_filter
            or snapshot.errors
            or snapshot.sniffer.problem
        )

    @property
    def next_change(self) -> float:
        """When a rule, a pause or a rate set by hand ends by itself, in monotonic seconds."""
        snapshot = self.loop.snapshot
        pause: Pause | None = snapshot.operator.pause
        ends = [
            snapshot.terms.next_change,
            None if pause is None else pause.end,
            *(override.end for override in snapshot.operator.overrides),
        ]
        return min((end for end in ends if end is not None), default=math.inf)

    def stop(self, *, hand_over: bool) -> tuple[str, ...]:
        """End as the service does; what could not be restored."""
        errors = () if hand_over else self.loop.release()
        self.observe()
        self.accounts.close()
        self.loop.events.close()
        return errors

    def kill(self) -> None:
        """Nothing more is done. What closing the database writes must not count, and a lock may be held for ever."""
        if self.history._database is not None:
            self.history._database.close()
