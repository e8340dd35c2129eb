"""The control loop: take what has come, decide, plan, reconcile, publish a snapshot.

One step does all of that once, in the one thread that writes to the kernel. Clock, kernel, table source and inputs of
the operator are handed in, so the rules of the loop are tested without root and without sleeping:

* A change of the table or of the rates is reconciled at once, incrementally: only its own shares are touched.
* HTB is installed and removed by a full reconcile, at once.
* What the kernel refuses for one share is retried with a back-off of its own and delays no other share.
* If HTB itself is refused, every change waits for its back-off; nobody is throttled then, so nobody waits to be freed.
* A full reconcile follows the kernel's notifications, quick checks that fail and refusals; and comes periodically.
"""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import BackEnd, ClassifierKind
from mptcp_throttled.enforcing.reconciler import Kernel, Outcome, Reconciler
from mptcp_throttled.enforcing.refused_objects import KernelObject, ObjectKind, without
from mptcp_throttled.enforcing.retries import Retries
from mptcp_throttled.enforcing.schedule import Schedule
from mptcp_throttled.enforcing.uplink_changes import uplink_changes
from mptcp_throttled.enforcing.uplinks import UplinkKernel, UplinkReconciler
from mptcp_throttled.plan.planner import PlanDelta, Planner
from mptcp_throttled.plan.shares import PlanSettings
from mptcp_throttled.policy.decisions import DecisionTable
from mptcp_throttled.policy.rules.override import EffectiveNetworks
from mptcp_throttled.reporting import eventlog, instruments
from mptcp_throttled.reporting.recent_decisions import RecentDecisions
from mptcp_throttled.vocabulary.class_ids import max_minor
from mptcp_throttled.vocabulary.kernel_plan import UNTOUCHED, KernelPlan
from mptcp_throttled.vocabulary.snapshot import MAX_ERRORS, Snapshot, SnifferState, update_throttled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from mptcp_throttle.model import AccessNetwork, FourTuple
    from mptcp_throttled.control.inbox import Request
    from mptcp_throttled.control.operator_state import OperatorStore
    from mptcp_throttled.control.running_config import RunningConfig
    from mptcp_throttled.control.source import TableUpdate
    from mptcp_throttled.vocabulary.clock import Clock
    from mptcp_throttled.vocabulary.counters import DiscardCounters, ProgramCounters
    from mptcp_throttled.vocabulary.decision import Decision, Previous
    from mptcp_throttled.vocabulary.operator import OperatorState
    from mptcp_throttled.vocabulary.traffic import ClosedSubflow

# How long only the pace slows a new class: the ramp of `pace.bpf.c`, or the longest drain of `throttle.bpf.c`.
_RAMP_SECONDS: Final = 1.0
_DRAIN_SECONDS: Final = 1.5
# Between the portions of `DecisionTable`: the rest of the time is for others.
_PORTION_SECONDS: Final = 0.02
_NO_MINOR: Final = 0


class DecidingKernel(Kernel, Protocol):
    """The kernel, with a program that may decide by itself which subflows are capped."""

    @property
    def deciding_problem(self) -> str | None:
        """Why no program does; None if one does."""

    @property
    def discards_problem(self) -> str | None:
        """Why discards are not prevented; None if they are, or are not to be."""

    @property
    def discard_counters(self) -> DiscardCounters:
        """What the programs that prevent them had counted within the last seconds."""

    @property
    def classifier(self) -> str:
        """The assignment back end in use: `socket`, `ipset` or `rules`."""

    def set_networks(self, networks: tuple[AccessNetwork, ...]) -> None:
        """Decide by these from now on; by none, nobody is capped."""

    def prevent_discards(self, networks: tuple[AccessNetwork, ...]) -> None:
        """Prevent discards for clients in these networks, where that is configured; to be called often."""

    def closed_subflows(self) -> Iterable[ClosedSubflow]:
        """The subflows that have closed since the last call, as far as a kernel program has counted them.

        Raises KernelError.
        """

    def counters(self) -> ProgramCounters:
        """What that program has counted since it was attached. Raises KernelError."""


class Source(Protocol):
    """Where the sniffer's table comes from."""

    def take(self) -> TableUpdate | None:
        """What is new since the last call; None if nothing."""


@dataclass(slots=True)
class _Step:
    """A step in progress: what is applied so far, and the decisions for subflows whose rate may have changed."""

    delta: PlanDelta
    applied: KernelPlan
    pacing_problem: str | None
    concerned: dict[FourTuple, Decision | None]


class Loop:
    """The control loop without its thread: `step` is called from outside.

    `note_closed` is given the subflows that have closed.
    `snapshot`, `recent_decisions.latest` and `note_kernel_change` are for any thread, all else for one.
    """

    def __init__(
        self,
        config: RunningConfig,
        operator: OperatorStore,
        source: Source,
        kernel: DecidingKernel,
        uplinks: UplinkKernel,
        clock: Clock,
        note_closed: Callable[[Iterable[ClosedSubflow]], None],
    ) -> None:
        self._config = config
        self._operator = operator
        self._source = source
        self._kernel = kernel
        self._clock = clock
        self._note_closed = note_closed
        self._networks = EffectiveNetworks()
        self._decisions = DecisionTable()
        self._planner = Planner()
        self._reconciler = Reconciler(kernel)
        self._uplink_kernel = uplinks
        self._uplinks = UplinkReconciler(uplinks, clock)
        self._retries = Retries()
        self._unverified: set[KernelObject] = set()
        self._blocked: frozenset[KernelObject] = frozenset()
        self._schedule = Schedule(clock.monotonic())
        self._adopted: Mapping[FourTuple, int] = {}
        self._errors: tuple[str, ...] = ()
        self._left_out: tuple[str, ...] = ()
        self._began = -math.inf
        self._htb_refused = False
        self._kernel_changed = threading.Event()
        self.snapshot = Snapshot()
        self.recent_decisions = RecentDecisions()

    def adopt(self, assignments: Mapping[FourTuple, int]) -> None:
        """Before the first step: keep subflows in the classes for which an earlier instance has marked them."""
        self._adopted = assignments
        self._planner.adopt(assignments)

    def note_kernel_change(self) -> None:
        """Somebody else has changed something in the kernel: the next step reconciles fully, or soon after."""
        self._kernel_changed.set()

    @property
    def next_deadline(self) -> float:
        """When the next step is due even if nothing comes, in monotonic seconds."""
        operator_expiry = self.snapshot.operator.next_expiry
        linger_expiry = self._planner.next_expiry
        portion_due = math.inf if self._decisions.complete else self._clock.monotonic() + _PORTION_SECONDS
        return min(
            portion_due,
            self._schedule.due,
            self._schedule.quick_check_due,
            self._retries.next_due,
            self._uplinks.next_deadline,
            math.inf if operator_expiry is None else operator_expiry,
            math.inf if linger_expiry is None else linger_expiry,
        )

    def step(self, requests: Sequence[Request[Any]] = ()) -> None:
        """Do everything that is due. `requests` are carried out first and answered when they are applied."""
        for request in requests:
            request.carry_out()
        if self._kernel_changed.is_set():
            self._kernel_changed.clear()
            self._schedule.changed()
            self._uplinks.note_kernel_change()
        self._step()
        for request in requests:
            request.answer()

    def release(self) -> tuple[str, ...]:
        """Leave the kernel as it was found; what could not be restored."""
        self._kernel.set_networks(())
        self._kernel.prevent_discards(())
        return (*self._uplinks.release(), *self._reconciler.full(UNTOUCHED).failures)

    def _step(self) -> None:
        before, config = self.snapshot, self._config.config
        operator = self._operator.current()
        networks = self._networks.update(config.networks, operator.overrides)
        settings = PlanSettings(
            max_minor(config.daemon.mark_mask),
            config.daemon.linger,
            config.daemon.other_traffic,
            _settle_seconds(before),
        )
        update = self._source.take()
        sniffer = before.sniffer if update is None else SnifferState(update.epoch, update.revision, update.problem)
        was_active, is_active = _is_active(before.operator, before.sniffer), _is_active(operator, sniffer)
        if networks is not before.networks or is_active != was_active:
            self._began = self._clock.monotonic()
        # The kernel program must not pace whom the daemon cannot throttle.
        is_deciding = is_active and not self._htb_refused
        self._kernel.set_networks(networks if is_deciding else ())
        if self._adopted:
            # This attaches the kernel program. The plan, and so what is adopted, depends on the back end.
            with suppress(KernelError):
                self._kernel.quick_check()
        previous = self._decide(update, networks, paused=operator.pause is not None)
        delta = self._planner.update(
            previous, self._decisions.decisions, self._clock.monotonic(), settings, self._retries.refused_minors
        )
        work = _Step(delta, before.applied, before.pacing_problem, dict(delta.decisions))
        self._reconcile(work)
        self._uplink_kernel.linger = config.daemon.linger
        changed_uplinks = self._uplinks.step(
            uplink_changes(previous, self._decisions.decisions),
            config.daemon.reconcile_interval,
            may_live=update is not None and update.whole,
        )
        # Last: to load the programs takes 20 ms.
        self._kernel.prevent_discards(() if operator.pause is not None else networks)
        throttled, transitions = update_throttled(
            before.throttled,
            work.concerned,
            work.applied,
            self._decisions.decisions,
            self._adopted,
            self._began,
            self._clock.monotonic(),
        )
        self._adopted = {}
        exhausted = (
            f"no class left for all of {network}: mark_mask allows {settings.max_minor}"
            for network in self._planner.exhausted_networks
        )
        self.snapshot = Snapshot(
            sniffer,
            config.networks,
            networks,
            operator,
            self._decisions.connections,
            self._decisions.decisions,
            self._planner.plan,
            work.applied,
            throttled,
            _bounded((*exhausted, *dict.fromkeys(self._all_errors()))),
            work.pacing_problem,
            self._kernel.deciding_problem,
            self._kernel.classifier,
            self._counters(before),
            self._uplinks.applied,
            self._uplinks.policed,
            self._uplinks.counters,
            self._kernel.discards_problem,
            self._kernel.discard_counters,
        )
        eventlog.log_step(before, self.snapshot, transitions)
        eventlog.log_uplinks(before, self.snapshot, changed_uplinks)
        self.recent_decisions.note(self._clock.time(), transitions, changed_uplinks, before, self.snapshot)
        instruments.count_step(before, self.snapshot, transitions)

    def _counters(self, before: Snapshot) -> ProgramCounters:
        """What the kernel program has counted; what it reports of closed subflows is passed on."""
        try:
            self._note_closed(self._kernel.closed_subflows())
            return self._kernel.counters()
        except KernelError:
            return before.counters

    def _decide(self, update: TableUpdate | None, networks: Sequence[AccessNetwork], *, paused: bool) -> Previous:
        """Decide for whom something has changed; their decisions before."""
        table = self._decisions
        # iptables rules, sets and the filter know a subflow by a port of the proxy; the kernel program knows its
        # connection, an nftables map and an OpenFlow rule both of its ends.
        on_any_port = self._kernel.classifier in {ClassifierKind.SOCKET, ClassifierKind.NFT, BackEnd.OVS}
        ports = None if on_any_port else frozenset(self._config.config.proxy.ports)
        previous = table.reconfigure(networks, paused=paused, ports=ports)
        if update is not None and update.whole:
            return {**table.replace(update.connections), **previous}
        return {**table.update({} if update is None else update.connections), **previous}

    def _reconcile(self, step: _Step) -> None:
        """Bring the kernel to the plan, by the delta alone where that is enough; nothing is read without a reason."""
        self._forget_unplanned(step.delta)
        is_due = self._clock.monotonic() >= self._schedule.due
        certain = True
        if step.delta.htb_changes or self._planner.plan.htb != step.applied.htb:
            # To free somebody never waits; to throttle somebody waits if HTB itself has been refused.
            is_due = is_due or step.applied.htb or not self._htb_refused
        elif step.applied.htb:
            if not step.delta.empty:
                certain = self._increment(step, step.delta.before, step.delta.after, frozenset())
            if not is_due and (due := self._retries.take_due(self._clock.monotonic())):
                certain &= self._retry(step, due)
        if is_due or not certain or not self._seems_intact(step.applied):
            self._reconcile_fully(step, is_expected=not certain)

    def _increment(self, step: _Step, before: KernelPlan, after: KernelPlan, due: frozenset[KernelObject]) -> bool:
        """Reconcile a part of the plan, without refused objects that are not `due`; whether the outcome is certain."""
        began = self._clock.monotonic()
        present = step.applied.part_of(before, after)
        outcome = self._reconciler.incremental(present, without(after, {*self._retries.waiting(due), *self._blocked}))
        step.applied = step.applied.replaced(present, outcome.applied)
        step.pacing_problem = outcome.pacing_problem
        self._note_refused(outcome, due, began)
        instruments.RECONCILE_DURATION.observe(self._clock.monotonic() - began)
        if outcome.errors or (outcome.refused and not due):
            # Perhaps refused only because the kernel is not in the state that we believe: a full reconcile will tell.
            self._unverified.update(outcome.refused)
            self._blocked |= outcome.blocked
            self._errors = tuple(dict.fromkeys((*self._errors, *outcome.errors)))
            self._schedule.changed()
        return outcome.certain

    def _retry(self, step: _Step, due: frozenset[KernelObject]) -> bool:
        assignments = self._planner.plan.assignments
        minors = {one.key if isinstance(one.key, int) else assignments.get(one.key, _NO_MINOR) for one in due}
        step.concerned.update(self._planner.members(minors))
        part = self._planner.part(minors)
        return self._increment(step, part, part, due)

    def _reconcile_fully(self, step: _Step, *, is_expected: bool) -> None:
        """`is_expected`: operations are needed for a reason that this step knows; otherwise they repair something."""
        plan, interval = self._planner.plan, self._config.config.daemon.reconcile_interval
        began, used = self._clock.monotonic(), self._clock.processor_time()
        due = self._retries.take_due(began) | self._unverified
        self._unverified.clear()
        is_expected |= bool(due or self._errors or self._htb_refused or not step.delta.empty)
        outcome = self._reconciler.full(without(plan, {*self._retries.waiting(due), *self._blocked}))
        is_unblocked = bool(self._blocked) and not outcome.blocked
        self._blocked = outcome.blocked
        step.applied, step.pacing_problem = outcome.applied.persistent(), outcome.pacing_problem
        self._left_out = outcome.left_out
        obstacle = () if outcome.obstacle is None else (outcome.obstacle,)
        self._htb_refused = outcome.obstacle is not None or plan.htb != outcome.applied.htb
        if outcome.applied.htb:
            self._errors = (*obstacle, *outcome.errors)
            self._note_refused(outcome, due, began)
        else:
            # Nothing is applied that could be retried by itself: what was refused is part of why HTB is not there.
            self._errors = (*obstacle, *outcome.failures)
            self._retries, self._blocked = Retries(), frozenset()
        is_repair = bool(outcome.done) and not is_expected
        if is_repair:
            eventlog.log_repair(len(outcome.done))
            instruments.count_repairs(outcome.done)
        if outcome.done or outcome.refused or outcome.errors or is_expected:
            step.concerned = self._everybody()
        # Only processor time counts: on a busy machine the full reconciles need not become rarer.
        ended, used = self._clock.monotonic(), self._clock.processor_time() - used
        instruments.RECONCILE_DURATION.observe(ended - began)
        trouble = is_repair or bool(self._errors) or self._htb_refused
        self._schedule.reconciled(ended - used, ended, interval, trouble=trouble)
        if is_unblocked:
            self._schedule.changed()

    def _seems_intact(self, applied: KernelPlan) -> bool:
        """Whether a quick check, if one is due, finds nothing, or its finding has to wait for a back-off."""
        began = self._clock.monotonic()
        if began < self._schedule.quick_check_due:
            return True
        is_intact = self._reconciler.quick_check(applied)
        interval = self._config.config.daemon.reconcile_interval
        self._schedule.quick_checked(began, self._clock.monotonic(), interval)
        if not is_intact:
            self._schedule.changed()
        return is_intact or began < self._schedule.due

    def _note_refused(self, outcome: Outcome, due: Iterable[KernelObject], began: float) -> None:
        longest = self._config.config.daemon.reconcile_interval
        self._retries.attempted(due, outcome.refused, began, self._clock.monotonic(), longest)

    def _forget_unplanned(self, delta: PlanDelta) -> None:
        if not self._retries:
            return
        before, after = delta.before, delta.after
        self._retries.forget(KernelObject(ObjectKind.CLASS, m) for m in before.classes if m not in after.classes)
        for kind in (ObjectKind.ASSIGNMENT, ObjectKind.PACE):
            self._retries.forget(
                KernelObject(kind, ends) for ends in before.assignments if ends not in after.assignments
            )

    def _all_errors(self) -> tuple[str, ...]:
        return *self._errors, *self._left_out, *self._retries.errors, *self._uplinks.errors

    def _everybody(self) -> dict[FourTuple, Decision | None]:
        """The decision for every subflow; None for one that was throttled and is not known any more."""
        decisions: dict[FourTuple, Decision | None] = dict.fromkeys(self.snapshot.throttled)
        decisions.update((d.subflow.ends, d) for of in self._decisions.decisions.values() for d in of)
        return decisions


def _is_active(operator: OperatorState, sniffer: SnifferState) -> bool:
    """Whether anybody may be throttled."""
    return operator.pause is None and sniffer.problem is None


def _settle_seconds(before: Snapshot) -> float:
    # A socket whose class the kernel program sets is put into it when its queue has drained.
    if before.pacing_problem is not None or before.classifier == ClassifierKind.SOCKET:
        return 0.0
    return _DRAIN_SECONDS if before.deciding_problem is None else _RAMP_SECONDS


def _bounded(errors: tuple[str, ...]) -> tuple[str, ...]:
    """The errors for the operator: with thousands of refused classes, not a line each."""
    more = len(errors) - MAX_ERRORS
    return errors if more <= 0 else (*errors[:MAX_ERRORS], f"and {more} more errors")
