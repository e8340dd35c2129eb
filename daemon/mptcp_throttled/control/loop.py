"""The control loop: takes what has arrived, decides, plans, applies, publishes a snapshot.

One step does all of that once, in the only thread that writes to the kernel. Clock, kernel, table source and inputs of
the operator are arguments, so the loop is tested without root and without sleeping.
"""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from mptcp_throttle.features import FeatureName
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import ClassifierKind, Direction
from mptcp_throttle.units import MAX_BURST_SECONDS
from mptcp_throttled.control.requests import Reloaded, carry_out
from mptcp_throttled.enforcing.keeper import Keeper
from mptcp_throttled.enforcing.reconciler import Kernel
from mptcp_throttled.enforcing.share_changes import caps_of, share_changes
from mptcp_throttled.enforcing.steering import SteeringKernel
from mptcp_throttled.enforcing.uplinks import UplinkKernel, UplinkReconciler
from mptcp_throttled.plan.planner import PlanDelta, Planner
from mptcp_throttled.plan.shares import PlanSettings
from mptcp_throttled.policy.current_terms import CurrentTerms
from mptcp_throttled.policy.decisions import DecisionTable
from mptcp_throttled.policy.one_path import update_one_path
from mptcp_throttled.reporting import instruments, step_log
from mptcp_throttled.reporting.event_log import EventLog
from mptcp_throttled.reporting.recent_decisions import RecentDecisions
from mptcp_throttled.reporting.step_events import StepEvents, reloaded
from mptcp_throttled.vocabulary.class_ids import max_minor
from mptcp_throttled.vocabulary.clock import EpochOffset
from mptcp_throttled.vocabulary.features import Feature, Situation
from mptcp_throttled.vocabulary.snapshot import Snapshot, SnifferState, bounded, update_throttled, uplink_transitions
from mptcp_throttled.vocabulary.terms import Facts, WallClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from mptcp_throttle.model import Ailment, Connection, FourTuple, Subflow, Token
    from mptcp_throttled.control.inbox import Message
    from mptcp_throttled.control.operator_state import OperatorStore
    from mptcp_throttled.control.requests import Request
    from mptcp_throttled.control.running_config import RunningConfig
    from mptcp_throttled.control.source import Source, TableUpdate
    from mptcp_throttled.vocabulary.applied import Applied
    from mptcp_throttled.vocabulary.budgets import Spent
    from mptcp_throttled.vocabulary.clock import Clock
    from mptcp_throttled.vocabulary.control_group import ControlGroup, EndedConnection
    from mptcp_throttled.vocabulary.decision import Decision, Previous
    from mptcp_throttled.vocabulary.fleet import SharedRates
    from mptcp_throttled.vocabulary.terms import PresentTerms, Shortfalls
    from mptcp_throttled.vocabulary.traffic import ClosedSubflow

# Between the portions of `DecisionTable`: the rest of the time is for other work.
_PORTION_SECONDS: Final = 0.02


class DecidingKernel(Kernel, Protocol):
    """The kernel, and what it tells policy and accounting: the classifier, what has closed, and sick subflows."""

    @property
    def classifier(self) -> str:
        """The kind of the classifier in use: `socket`, `nft`, `rules` or `ovs`."""

    def closed_subflows(self) -> Iterable[ClosedSubflow]:
        """The subflows that a kernel program has seen close since the last call. Raises KernelError."""

    def ended_connections(self) -> Iterable[EndedConnection]:
        """The connections that have ended since the last call; none without a control group. Raises KernelError."""

    def ailments(self) -> Mapping[FourTuple, Ailment]:
        """The sick subflows, as far as a kernel program judges them. Raises KernelError."""


class Loop:
    """The control loop without its thread: `step` is called from outside.

    `features` are those of the kernel by name, except uplinks. `note_closed` is called with the subflows that have
    closed, `note_ended` with the connections that have ended while caps were applied. `steering` is given the subflows
    whose cap of downloads has changed, and knows the priorities that clients have asked for. Facts come from `spent`
    (budgets with reached stages), `shortfalls` and `shared` (this proxy's parts of shared rates; None: it has none).
    `snapshot`, `recent_decisions.latest`, `events` and `note_kernel_change` are for any thread, all else for one.
    """

    def __init__(
        self,
        config: RunningConfig,
        operator: OperatorStore,
        source: Source,
        kernel: DecidingKernel,
        uplinks: UplinkKernel,
        features: Mapping[str, Feature],
        clock: Clock,
        note_closed: Callable[[Iterable[ClosedSubflow]], None],
        steering: SteeringKernel,
        note_ended: Callable[[Iterable[EndedConnection]], None],
        control_group: ControlGroup,
        spent: Callable[[], Spent] = dict,
        shortfalls: Callable[[], Shortfalls] = dict,
        shared: Callable[[], SharedRates | None] = lambda: None,
    ) -> None:
        self._config = config
        self._operator = operator
        self._source = source
        self._kernel = kernel
        self._clock = clock
        self._note_closed = note_closed
        self._steering = steering
        self._note_ended = note_ended
        self._spent = spent
        self._shortfalls = shortfalls
        self._shared = shared
        self._epoch_offset = EpochOffset(clock)
        self._terms = CurrentTerms(config.config.proxies)
        self._decisions = DecisionTable(control_group, config.config.proxies)
        self._planner = Planner()
        self._keeper = Keeper(kernel, self._planner, clock)
        self._uplinks = UplinkReconciler(uplinks, clock)
        self._features = {**features, FeatureName.UPLINKS: self._uplinks}
        self._adopted: Mapping[FourTuple, int] = {}
        self._ailments: Mapping[FourTuple, Ailment] = {}
        self._began = -math.inf
        self._is_active = False
        self._kernel_changed = threading.Event()
        self.snapshot = Snapshot()
        self.recent_decisions = RecentDecisions()
        self.events = EventLog(clock.time)
        self._step_events = StepEvents()

    def adopt(self, assignments: Mapping[FourTuple, int]) -> None:
        """Call this before the first step: subflows stay in the classes that an earlier instance has assigned."""
        self._adopted = assignments
        self._planner.adopt(assignments)

    def note_kernel_change(self) -> None:
        """Another program has changed something in the kernel: the next step reconciles fully, or soon after."""
        self._kernel_changed.set()

    @property
    def next_deadline(self) -> float:
        """When the next step is due even if nothing happens, in monotonic seconds."""
        pause = self.snapshot.operator.pause
        by_themselves = None if pause is None else pause.end, self._terms.terms.next_change, self._planner.next_expiry
        portion_due = math.inf if self._decisions.complete else self._clock.monotonic() + _PORTION_SECONDS
        return min(
            portion_due,
            self._keeper.next_deadline,
            self._uplinks.next_deadline,
            self._step_events.next_deadline,
            *(at for at in by_themselves if at is not None),
        )

    def step(self, messages: Sequence[Message[Any]] = ()) -> None:
        """Do everything that is due. Requests are carried out first and answered when they are applied."""
        for message in messages:
            message.carry_out(self._carry_out)
        if self._kernel_changed.is_set():
            self._kernel_changed.clear()
            self._keeper.note_kernel_change()
            self._uplinks.note_kernel_change()
        self._step()
        for message in messages:
            message.answer()

    def release(self) -> tuple[str, ...]:
        """Leave the kernel as it was found; what could not be restored."""
        errors = [error for feature in self._features.values() for error in feature.release()]
        return (*errors, *self._keeper.release())

    def _carry_out(self, request: Request[Any]) -> Any:  # noqa: ANN401
        answer = carry_out(request, self._operator, self._config, self._clock.time())
        if isinstance(answer, Reloaded):
            self.events.keep(reloaded(answer.changes, answer.problems))
        return answer

    def _step(self) -> None:
        before, config, now = self.snapshot, self._config.config, self._clock.monotonic()
        daemon = config.daemon
        operator = self._operator.current()
        is_paused = operator.pause is not None
        wall_clock = WallClock(self._epoch_offset.seconds, config.time_zone)
        facts = Facts(operator.overrides, wall_clock, self._spent(), self._shortfalls(), self._shared())
        terms = self._terms.update(config.networks, now, facts)
        networks = self._terms.configured
        update = self._source.take()
        sniffer = before.sniffer if update is None else SnifferState(update.epoch, update.revision, update.problem)
        was_active, self._is_active = self._is_active, not is_paused and sniffer.problem is None
        if networks is not before.networks or terms is not before.terms or self._is_active != was_active:
            self._began = now
        # If a share came back after a shorter time, it would have a whole burst again.
        linger = max(daemon.linger, MAX_BURST_SECONDS) if terms.bursts else daemon.linger
        # Kernel programs must not throttle what the daemon cannot.
        throttling = self._is_active and not self._keeper.htb_refused
        situation = Situation(
            self._terms.effective, is_paused, throttling, linger=linger, interval=daemon.reconcile_interval
        )
        for feature in self._features.values():
            feature.follow(situation)
        previous = self._decide(update, terms, paused=is_paused)
        decisions = self._decisions.decisions
        settings = PlanSettings(max_minor(daemon.mark_mask), linger, daemon.other_traffic)
        delta = self._planner.update(previous, decisions, terms, now, settings, self._keeper.refused_minors)
        applied = self._keeper.step(delta, daemon.reconcile_interval)
        may_live = update is not None and update.whole
        uplink_changes = share_changes(previous, decisions, Direction.UPLINK)
        live = self._all_decisions if sniffer.problem is None else None
        is_looking = self._keeper.looked_at >= now
        uplinks = self._uplinks.step(uplink_changes, terms, live, may_live=may_live, early=is_looking)
        self._steering.assign(caps_of(self._changed_caps(previous, terms), terms))
        concerned, adopted = self._concerned(delta, applied), self._adopted
        throttled, transitions = update_throttled(
            before.throttled,
            concerned,
            applied.plan,
            decisions,
            terms,
            adopted,
            self._steering.held_since,
            self._began,
            self._clock.monotonic(),
        )
        self._adopted = {}
        self.snapshot = after = Snapshot(
            sniffer=sniffer,
            networks=networks,
            terms=terms,
            facts=facts,
            operator=operator,
            connections=self._decisions.connections,
            decisions=decisions,
            plan=self._planner.plan,
            applied=applied.plan,
            without_qdisc=applied.without_qdisc,
            throttled=throttled,
            errors=bounded((*self._terms.errors, *self._planner.errors, *applied.errors, *self._uplinks.errors)),
            classifier=self._kernel.classifier,
            uplinks=self._uplinks.applied,
            policed=self._uplinks.policed,
            features={name: feature.state for name, feature in self._features.items()},
            one_path_since=update_one_path(before.one_path_since, previous, decisions, now),
        )
        with suppress(KernelError):
            self._note_closed(self._kernel.closed_subflows())
            ended = self._kernel.ended_connections()
            if throttling:
                self._note_ended(ended)
        transitions += uplink_transitions(before.uplinks, after.uplinks, uplinks.tried)
        step_log.log_step(before, after, transitions, applied, uplinks)
        instruments.count_step(before, after, transitions, applied, uplinks)
        self.recent_decisions.note(self._clock.time(), transitions, after)
        self.events.say(*self._step_events.unlogged(before, after, now))
        self.events.keep(*self._step_events.logged(before, after, transitions, now))

    def _concerned(self, delta: PlanDelta, applied: Applied) -> Mapping[FourTuple, Decision | None]:
        """The decisions for the subflows whose rate may have changed; None for one that has ended."""
        if not applied.is_full:
            return {**delta.decisions, **self._planner.members(applied.retried)}
        return {**dict.fromkeys(self.snapshot.throttled), **self._all_decisions()}

    def _changed_caps(self, previous: Previous, terms: PresentTerms) -> Mapping[FourTuple, Decision | None]:
        """The decisions for the subflows whose download may have another share, or another rate."""
        changes = share_changes(previous, self._decisions.decisions, Direction.DOWNLINK)
        if terms is self.snapshot.terms:
            return changes
        return {**self._all_decisions(), **changes}

    def _all_decisions(self) -> dict[FourTuple, Decision]:
        return {decision.subflow.ends: decision for each in self._decisions.decisions.values() for decision in each}

    def _decide(self, update: TableUpdate | None, terms: PresentTerms, *, paused: bool) -> Previous:
        """Decide for the connections that a change concerns; returns their previous decisions."""
        table = self._decisions
        # The filter for fwmarks needs a port of the proxy: with `rules`, subflows on other ports have no class.
        by_port = self._kernel.classifier == ClassifierKind.RULES
        ports = self._config.config.proxy.ports if by_port else None
        previous = table.reconfigure(self._terms.configured, terms, paused=paused, ports=ports)
        take = table.replace if update is not None and update.whole else table.update
        changed = self._with_other_ailments()
        if update is not None:
            changed = update.connections if update.whole else {**changed, **update.connections}
        return {**take({token: self._completed(each) for token, each in changed.items()}), **previous}

    def _with_other_ailments(self) -> Mapping[Token, Connection | None]:
        """The connections of which a subflow has become sick or healthy since the last step."""
        before = self._ailments
        with suppress(KernelError):
            self._ailments = self._kernel.ailments()
        changed = {ends for ends, _ in before.items() ^ self._ailments.items()}
        if not changed:
            return {}
        connections = self._decisions.connections
        return {
            token: connection
            for token, connection in connections.items()
            if any(subflow.ends in changed for subflow in connection.subflows)
        }

    def _completed(self, connection: Connection | None) -> Connection | None:
        """Add what the sniffer does not know: the priorities that clients ask for, and which subflows are sick."""
        if connection is None:
            return None
        subflows = tuple(map(self._completed_subflow, connection.subflows))
        return connection if subflows == connection.subflows else replace(connection, subflows=subflows)

    def _completed_subflow(self, subflow: Subflow) -> Subflow:
        backup, ailment = self._steering.priority_of(subflow.ends), self._ailments.get(subflow.ends)
        if backup in (None, subflow.backup) and ailment == subflow.ailment:
            return subflow
        return replace(subflow, backup=subflow.backup if backup is None else backup, ailment=ailment)
