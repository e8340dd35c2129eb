"""Makes the kernel throttle uplinks as decided.

Uplinks need neither classes nor assignments, and no other program should change our maps. So what the kernel
acknowledges counts as applied. What it refuses is free, and is tried again with exponential back-off. The filters are
checked once an interval, and put back if they are missing.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from immutables import Map

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttled.vocabulary.applied import UplinkStep
from mptcp_throttled.vocabulary.counters import numbers_of
from mptcp_throttled.vocabulary.features import FeatureState, Situation
from mptcp_throttled.vocabulary.terms import PresentTerms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from mptcp_throttle.model import FourTuple
    from mptcp_throttled.vocabulary.clock import Clock
    from mptcp_throttled.vocabulary.counters import UplinkCounters
    from mptcp_throttled.vocabulary.decision import Decision, Throttle

_FIRST_DELAY_SECONDS: Final = 0.1
_DETACH_SECONDS: Final = 0.25
"""The time between two attempts to detach the program while clients must be told."""


class UplinkKernel(Protocol):
    """The kernel as this reconciler sees it. All methods raise KernelError."""

    linger: float
    """Seconds for which a share without subflows keeps its debt."""

    @property
    def policed(self) -> frozenset[FourTuple]:
        """The subflows whose clients keep sending in debt, so that what exceeds their rate is dropped."""

    @property
    def unreached(self) -> frozenset[FourTuple]:
        """The free subflows whose clients could not be told that they are."""

    @property
    def window_problem(self) -> str | None:
        """Why the last `throttle` could not bound all windows of capped subflows; None if it could."""

    @property
    def counters(self) -> UplinkCounters:
        """What the program has counted."""

    def attach(self) -> bool:
        """Attach the filters that are missing, and refresh `policed`, `unreached` and `counters`.

        True if another program had removed or displaced one, or an interface is a new one.
        """

    def throttle(self, uplinks: Mapping[FourTuple, Throttle | None]) -> None:
        """Throttle the uplinks of these subflows, and free those for which it is None."""

    def forget(self, untold: Collection[FourTuple]) -> None:
        """Free subflows without telling their clients."""

    def forget_ended(self, subflows: Collection[FourTuple]) -> None:
        """Free those of these subflows that have no connected socket on this host, without telling their clients."""

    def detach_if_told(self) -> bool:
        """Detach the program if no uplink is throttled and all clients have been told so; whether it is detached.

        If not, `policed`, `unreached` and `counters` are refreshed.
        """

    def release(self) -> None:
        """Free all uplinks, tell the clients, and detach the program."""


class UplinkReconciler:
    """The throttled uplinks, as a feature; what is `applied`, and the `errors` of what is not. For one thread."""

    def __init__(self, kernel: UplinkKernel, clock: Clock) -> None:
        self._kernel = kernel
        self._clock = clock
        self._interval = 0.0
        self._window_problems: list[str] = []
        self._wanted: dict[FourTuple, Decision] = {}
        self._terms = PresentTerms()
        self._is_attached = False
        self._check_due = self._retry_due = math.inf
        self._delay = 0.0
        self.applied: Map[FourTuple, Throttle] = Map()
        self.errors: tuple[str, ...] = ()

    @property
    def policed(self) -> frozenset[FourTuple]:
        """The subflows whose clients keep sending in debt."""
        return self._kernel.policed

    @property
    def state(self) -> FeatureState:
        """Why uplinks are refused, and what the program has counted."""
        return FeatureState("; ".join(self.errors) or None, numbers_of(self._kernel.counters))

    def follow(self, situation: Situation) -> None:
        """Check the filters once an interval, which is also the longest delay between two attempts."""
        self._interval, self._kernel.linger = situation.interval, situation.linger

    @property
    def next_deadline(self) -> float:
        """When the next `step` is due even if nothing changes, in monotonic seconds."""
        return min(self._check_due, self._retry_due)

    def note_kernel_change(self) -> None:
        """Another program has changed something in the kernel: the next step checks the filters."""
        if self._is_attached:
            self._check_due = -math.inf

    def step(
        self,
        changes: Mapping[FourTuple, Decision | None],
        terms: PresentTerms,
        live: Callable[[], Collection[FourTuple]] | None = None,
        *,
        may_live: bool = False,
        early: bool = False,
    ) -> UplinkStep:
        """Take changed decisions, None for subflows that have ended, and do what is due.

        The rates are those of `terms`, also for decisions that have not changed. `live` gives all subflows; it is None
        if the sniffer has no table. `may_live`: subflows without a decision may still live, since the sniffer has lost
        or replaced its whole table. `early`: the kernel is being checked anyway, so check the filters if half of the
        interval is over: an idle daemon then wakes up only once.
        """
        for ends, decision in changes.items():
            if decision is None or decision.uplink.share is None:
                self._wanted.pop(ends, None)
            else:
                self._wanted[ends] = decision
        if terms is not self._terms:
            self._terms = terms
            other_rates = {ends: d for ends, d in self._missing().items() if d is not None and ends in self.applied}
            changes = {**other_rates, **changes}
        self._window_problems.clear()
        began = self._clock.monotonic()
        is_retry = began >= self._retry_due
        is_first = self._wanted and not self._is_attached and self._retry_due == math.inf
        repairs = 0
        if is_first or is_retry or began >= self._check_due - (self._interval / 2 if early else 0.0):
            repairs = self._check()
            if live is not None:
                self._forget_ended(live)
        if not self._is_attached:
            return UplinkStep({}, repairs)
        due = self._missing() if is_retry else changes
        if due:
            untold = _not_to_be_told({} if is_retry else due, may_live=may_live)
            throttles = {
                ends: None if d is None else terms.throttle(d.uplink) for ends, d in due.items() if ends not in untold
            }
            self._apply(throttles, untold)
        elif is_retry:
            self._succeeded()
        return UplinkStep(due, repairs, tuple(self._window_problems))

    def release(self) -> tuple[str, ...]:
        """Free all uplinks and detach the program; what could not be restored."""
        try:
            self._kernel.release()
        except KernelError as error:
            return (str(error),)
        finally:
            self._wanted, self.applied, self._is_attached = {}, Map(), False
            self._check_due = self._retry_due = math.inf
        return ()

    def _missing(self) -> dict[FourTuple, Decision | None]:
        missing: dict[FourTuple, Decision | None] = {e: None for e in self.applied if e not in self._wanted}
        wanted = ((ends, d, self._terms.throttle(d.uplink)) for ends, d in self._wanted.items())
        missing.update((ends, d) for ends, d, throttle in wanted if self.applied.get(ends) != throttle)
        return missing

    def _check(self) -> int:
        """Attach the program while any uplink is throttled, detach it when none is and no client has to be told.

        Returns the number of repairs.
        """
        interval, repairs = self._interval, 0
        try:
            if self._wanted or self.applied:
                repairs = int(self._kernel.attach())
                self._is_attached = True
            elif self._kernel.detach_if_told():
                self._is_attached, self._check_due = False, math.inf
                self._succeeded()
                return 0
            else:
                if not self._kernel.unreached:  # clients that were not reached are told with the next ACK, at any time
                    interval = min(interval, _DETACH_SECONDS)
                self._succeeded()
        except KernelError as error:
            self._fail(error)
            return 0
        self._check_due = self._clock.monotonic() + interval
        return repairs

    def _forget_ended(self, live: Callable[[], Collection[FourTuple]]) -> None:
        """Forget free subflows that have ended before their clients could be told.

        Their end is no change of a decision. That the sniffer's table lacks one does not prove that it has ended: the
        sniffer clears its table when it has lost its last interface.
        """
        unreached = self._kernel.unreached
        if unreached:
            with suppress(KernelError):  # the next check tries again
                self._kernel.forget_ended(unreached.difference(live()))

    def _apply(self, throttles: Mapping[FourTuple, Throttle | None], untold: Collection[FourTuple]) -> None:
        refused: dict[str, None] = {}
        try:
            self._kernel.forget(untold)
            self._note(dict.fromkeys(untold))
        except KernelError as error:
            refused[str(error)] = None
        try:
            self._throttle(throttles)
            self._note(throttles)
        except KernelError:
            for ends, throttle in throttles.items():
                failed = self._apply_one(ends, throttle)
                if failed is not None:
                    refused[str(failed)] = None
        if refused:
            self.errors = tuple(refused)
            self._delay_retry()
        elif self.errors and not self._missing():
            self._succeeded()

    def _throttle(self, throttles: Mapping[FourTuple, Throttle | None]) -> None:
        try:
            self._kernel.throttle(throttles)
        finally:
            if self._kernel.window_problem is not None:
                self._window_problems.append(self._kernel.window_problem)

    def _apply_one(self, ends: FourTuple, throttle: Throttle | None) -> KernelError | None:
        try:
            self._throttle({ends: throttle})
        except KernelError as error:
            if throttle is not None:
                with suppress(KernelError):
                    self._kernel.throttle({ends: None})
                    self._note({ends: None})
            return error
        self._note({ends: throttle})
        return None

    def _note(self, done: Mapping[FourTuple, Throttle | None]) -> None:
        with self.applied.mutate() as applied:
            for ends, throttle in done.items():
                if throttle is None:
                    applied.pop(ends, None)
                else:
                    applied[ends] = throttle
            self.applied = applied.finish()

    def _fail(self, error: KernelError) -> None:
        """Free all uplinks: the program may see no packets, or packets of another interface."""
        with suppress(KernelError):
            self._kernel.throttle(dict.fromkeys(self.applied))
            self.applied = Map()
        self._is_attached = False
        self.errors = (str(error),)
        self._check_due = math.inf
        self._delay_retry()

    def _delay_retry(self) -> None:
        self._delay = min(max(self._delay * 2, _FIRST_DELAY_SECONDS), self._interval)
        self._retry_due = self._clock.monotonic() + self._delay

    def _succeeded(self) -> None:
        self.errors, self._delay, self._retry_due = (), 0.0, math.inf


def _not_to_be_told(changes: Mapping[FourTuple, Decision | None], *, may_live: bool) -> frozenset[FourTuple]:
    """The subflows whose clients are not told: those that have ended, and those that have become backups.

    What tells a client (MP_PRIO) would make a backup a regular subflow.
    """
    return frozenset(
        ends
        for ends, decision in changes.items()
        if (not may_live if decision is None else decision.uplink.share is None and decision.subflow.backup)
    )
