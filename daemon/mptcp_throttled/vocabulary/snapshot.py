"""The daemon's state after a step of the loop, as a value that never changes: any thread may read it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, Protocol

from immutables import Map

from mptcp_throttle.features import FeatureName
from mptcp_throttle.model import AccessNetwork, Address, Connection, Devices, Direction, FourTuple, Token
from mptcp_throttled.vocabulary.decision import Decision, Share, Throttle
from mptcp_throttled.vocabulary.features import FeatureState
from mptcp_throttled.vocabulary.kernel_plan import UNTOUCHED, KernelPlan
from mptcp_throttled.vocabulary.operator import OperatorState
from mptcp_throttled.vocabulary.terms import Facts, PresentTerms

KEEPS_SENDING: Final = "client keeps sending (ignores MP_PRIO, or has no other path): the excess is dropped"
_NOT_APPLIED: Final = "not applied; see status"

MAX_ERRORS: Final = 20
"""The most errors of a snapshot; one more line says how many are omitted."""


@dataclass(frozen=True, slots=True)
class Throttled:
    """A subflow that is throttled in the kernel as `throttle` says, by the class `minor`.

    `latency` is the time in seconds from the SYN that caused it to the moment when steering held it back, or when it
    was assigned to its class. That SYN is the latest of its connection before, by the kernel's time stamp. None: no SYN
    has caused it, but a start, a reload, the operator, or a sniffer that answers again. `adopted`: its assignment is
    that of an earlier instance.
    """

    decision: Decision
    throttle: Throttle
    minor: int
    latency: float | None
    adopted: bool = False


@dataclass(frozen=True, slots=True)
class SnifferState:
    """How far the daemon has followed the sniffer's table; `problem` says why it does not follow it."""

    epoch: str = ""
    revision: int = 0
    problem: str | None = "not connected yet"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was known, decided, planned and applied after a step of the loop.

    `networks` are as configured; their present rates are in the `terms`, which rules have made from the `facts`.
    `without_qdisc`: the classes of `applied` are only noted, and paces and steering alone hold caps. `classifier` is
    the one in use. `uplinks` are those that are throttled in the kernel; of those in `policed`, what exceeds the rate
    is dropped. `features` are by name. `one_path_since`: since when (monotonic seconds) connections that had several
    access networks have had one only.
    """

    sniffer: SnifferState = field(default_factory=SnifferState)
    networks: tuple[AccessNetwork, ...] = ()
    terms: PresentTerms = field(default_factory=PresentTerms)
    facts: Facts = field(default_factory=Facts)
    operator: OperatorState = field(default_factory=OperatorState)
    connections: Map[Token, Connection] = field(default_factory=Map)
    decisions: Map[Token, tuple[Decision, ...]] = field(default_factory=Map)
    plan: KernelPlan = UNTOUCHED
    applied: KernelPlan = UNTOUCHED
    without_qdisc: bool = False
    throttled: Map[FourTuple, Throttled] = field(default_factory=Map)
    errors: tuple[str, ...] = ()
    classifier: str = ""
    uplinks: Map[FourTuple, Throttle] = field(default_factory=Map)
    policed: frozenset[FourTuple] = frozenset()
    features: Mapping[str, FeatureState] = field(default_factory=dict)
    one_path_since: Map[Token, float] = field(default_factory=Map)
    _devices: Mapping[str, Devices] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_devices", {network.name: network.devices for network in self.networks})

    def device(self, network: str | None, address: Address) -> str | None:
        """The name of the device with this address in this network; None if it has none."""
        devices = None if network is None else self._devices.get(network)
        device = None if devices is None else devices.find(address)
        return None if device is None else device.name

    def device_of(self, ends: FourTuple) -> str | None:
        """The name of the device of a throttled subflow."""
        throttle = self.throttle(Direction.DOWNLINK, ends) or self.throttle(Direction.UPLINK, ends)
        return None if throttle is None else self.device(throttle.share.network, ends.client.address)

    def all_decisions(self) -> Iterator[Decision]:
        """The decisions for all subflows."""
        return chain.from_iterable(self.decisions.values())

    @property
    def has_htb(self) -> bool:
        """Whether the classes of `applied` are in the kernel."""
        return self.applied.htb and not self.without_qdisc

    @property
    def held(self) -> int:
        """How many subflows are held back, and so have no pace."""
        return self.features.get(FeatureName.STEERING, FeatureState()).held

    def problem_of(self, feature: FeatureName) -> str | None:
        """Why a feature is not in place although it should be; None also before the first step."""
        return self.features[feature].problem if feature in self.features else None

    def throttle(self, direction: Direction, ends: FourTuple) -> Throttle | None:
        """What is applied for a subflow in a direction; None: it is free."""
        if direction is Direction.UPLINK:
            return self.uplinks.get(ends)
        throttled = self.throttled.get(ends)
        return None if throttled is None else throttled.throttle

    def reason(self, direction: Direction, decision: Decision) -> str:
        """Why a subflow is throttled or free in a direction: as decided, or because the kernel does not have it."""
        verdict, ends = decision.of(direction), decision.subflow.ends
        if verdict.share is None:
            return verdict.reason
        if self.throttle(direction, ends) is None:
            return _NOT_APPLIED
        is_policed = direction is Direction.UPLINK and ends in self.policed
        reasons = verdict.reason, self._why_rate(verdict.share), KEEPS_SENDING if is_policed else None
        return "; ".join(filter(None, reasons))

    def _why_rate(self, share: Share) -> str | None:
        """Why the rate of a network's share is not the configured one; a client's own verdict says that already."""
        why = None if share.client is not None else self.terms.term(share).reason
        return None if why is None else f"{share.kind.word}: {why}"

    def state_of(self, decision: Decision) -> str:
        """One word for the downlink of a subflow: `cap`, `limit`, `backup` or `free`."""
        throttle = self.throttle(Direction.DOWNLINK, decision.subflow.ends)
        if throttle is not None:
            return throttle.share.kind.word
        return "backup" if decision.subflow.backup else "free"


class Snapshots(Protocol):
    """Has the snapshot of the last step."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of what is applied to a subflow in one direction.

    `decision` is None if the subflow has ended. `minor` and `latency` are those of a throttled downlink.
    """

    direction: Direction
    ends: FourTuple
    before: Throttle | None
    after: Throttle | None
    decision: Decision | None
    minor: int | None = None
    latency: float | None = None


def uplink_transitions(
    before: Mapping[FourTuple, Throttle],
    after: Mapping[FourTuple, Throttle],
    concerned: Mapping[FourTuple, Decision | None],
) -> list[Transition]:
    """The changes of throttled uplinks among the subflows `concerned`: their decisions, None for one that has ended."""
    return [
        Transition(Direction.UPLINK, ends, before.get(ends), after.get(ends), decision)
        for ends, decision in concerned.items()
        if before.get(ends) != after.get(ends)
    ]


def update_throttled(
    throttled: Map[FourTuple, Throttled],
    concerned: Mapping[FourTuple, Decision | None],
    applied: KernelPlan,
    decisions: Mapping[Token, Iterable[Decision]],
    terms: PresentTerms,
    adopted: Mapping[FourTuple, int],
    held_since: Callable[[FourTuple], float | None],
    began: float,
    now: float,
) -> tuple[Map[FourTuple, Throttled], list[Transition]]:
    """The throttled subflows, updated for the subflows `concerned`, and the changes among these.

    `adopted` are the assignments that an earlier instance has left. `held_since` says since when steering holds a
    subflow back. `began` is since when networks, rates and pause are unchanged and the sniffer answers. Times are in
    monotonic seconds.
    """
    transitions: list[Transition] = []
    changed = throttled.mutate()
    is_changed = False
    for ends, decision in concerned.items():
        before, minor = throttled.get(ends), applied.assignments.get(ends)
        throttle_before = None if before is None else before.throttle
        throttle = None if decision is None else terms.throttle(decision.downlink)
        if decision is None or throttle is None or minor is None:
            if before is not None:
                is_changed = True
                del changed[ends]
                transitions.append(Transition(Direction.DOWNLINK, ends, throttle_before, None, decision))
            continue
        if before is None:
            is_adopted = adopted.get(ends) == minor
            held = held_since(ends)
            at = now if held is None else held
            opened = (d.subflow.opened_at for d in decisions[decision.token])
            reason = max((opened_at for opened_at in opened if opened_at <= at), default=-math.inf)
            latency = None if is_adopted or reason < began else at - reason
            after = Throttled(decision, throttle, minor, latency, is_adopted)
        else:
            is_adopted = False
            after = replace(before, decision=decision, throttle=throttle, minor=minor)
        if throttle != throttle_before and not is_adopted:
            change = Transition(Direction.DOWNLINK, ends, throttle_before, throttle, decision, minor, after.latency)
            transitions.append(change)
        if after != before:
            is_changed = True
            changed[ends] = after
    # The same object if nothing has changed: readers compare identities.
    return changed.finish() if is_changed else throttled, transitions


def bounded(errors: Iterable[str]) -> tuple[str, ...]:
    """The first `MAX_ERRORS` errors, each text once: thousands of classes may be refused."""
    texts = tuple(dict.fromkeys(errors))
    omitted = len(texts) - MAX_ERRORS
    return texts if omitted <= 0 else (*texts[:MAX_ERRORS], f"and {omitted} more errors")
