"""What flows, compared with what is applied: rates as measured, and subflows whose rate is not enforced.

The kernel's account of a subflow (its socket's class, pace and bytes; the bytes of its class) is observed every second,
or every few seconds. A difference must still be seen `GRACE_SECONDS` after it was seen first, and the subflow must send
all that time: the kernel program may decide before the daemon, and a socket gets its class when its queue has drained.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from immutables import Map

from mptcp_throttle.features import FeatureName
from mptcp_throttle.model import ClassifierKind, FourTuple
from mptcp_throttled.vocabulary.observation import Observation, SocketState
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.traffic import SocketTotals

GRACE_SECONDS: Final = 3.0
_LONG_SECONDS: Final = 10.0
# A few packets may have been sent between the readings of classes and sockets; the slowest caps pass little more.
_CLASS_LAG_BYTES: Final = 3000

_SENT: Final = attrgetter("sent")
_RECEIVED: Final = attrgetter("received")

_STARVED: Final = "its packets do not reach its class"
_STARVED_BUT_PACED: Final = f"{_STARVED}, only its pace limits it"
_NOT_IN_CLASS: Final = "its socket is not in its class"
_IN_CLASS: Final = "its socket has a class, but no rate applies"
_NOT_PACED: Final = "its socket is not paced"
_PACED: Final = "its socket has a pace, but no rate applies"


@dataclass(frozen=True, slots=True)
class Difference:
    """Between what is applied for a subflow and what it does, and since when (monotonic seconds)."""

    text: str
    since: float


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What the latest observation shows. Rates are bytes of payload per second: `rates` and `received_rates` since the
    observation before, `long_rates` over the last 10 to 20 seconds, or since the subflow began. `network_rates` and
    `received_network_rates` are the sums by access network of those that are not zero."""

    latest: Observation | None = None
    rates: Mapping[FourTuple, float] = field(default_factory=Map)
    received_rates: Mapping[FourTuple, float] = field(default_factory=Map)
    long_rates: Mapping[FourTuple, float] = field(default_factory=Map)
    network_rates: Mapping[str, float] = field(default_factory=Map)
    received_network_rates: Mapping[str, float] = field(default_factory=Map)
    differences: Mapping[FourTuple, Difference] = field(default_factory=Map)
    anchors: tuple[Observation, ...] = ()
    not_enforced: Mapping[FourTuple, str] = field(init=False)
    """Why the rate of a subflow is not enforced, for those with a difference that has lasted."""

    def __post_init__(self) -> None:
        at = 0.0 if self.latest is None else self.latest.at
        lasting = {ends: d.text for ends, d in self.differences.items() if at - d.since >= GRACE_SECONDS}
        object.__setattr__(self, "not_enforced", lasting)

    def after(self, now: Observation, snapshot: Snapshot) -> Enforcement:
        """With one more observation, of what the snapshot says is applied."""
        before = self.latest
        if before is None:
            return Enforcement(now, anchors=(now,))
        networks = {d.subflow.ends: d.network for d in snapshot.all_decisions()}
        texts = dict(_differences(before, now, snapshot, networks))
        since = {ends: old.since for ends, old in self.differences.items()}
        is_due = now.at - self.anchors[-1].at >= _LONG_SECONDS
        sent, received = _rates(before, now, _SENT), _rates(before, now, _RECEIVED)
        return Enforcement(
            now,
            sent,
            received,
            _rates(self.anchors[0], now, _SENT),
            _network_rates(sent, networks),
            _network_rates(received, networks),
            {ends: Difference(text, since.get(ends, now.at)) for ends, text in texts.items()},
            (self.anchors[-1], now) if is_due else self.anchors,
        )


def _rates(before: Observation, now: Observation, of: Callable[[SocketTotals], int]) -> dict[FourTuple, float]:
    seconds = now.at - before.at
    nothing = SocketState(0, None, SocketTotals())
    return {
        ends: (of(state.totals) - of(before.sockets.get(ends, nothing).totals)) / seconds
        for ends, state in now.sockets.items()
    }


def _network_rates(rates: Mapping[FourTuple, float], networks: Mapping[FourTuple, str | None]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for ends, rate in rates.items():
        # Most of many subflows are idle, and to look one up takes longer than to pass over it.
        if rate and (network := networks.get(ends)) is not None:
            sums[network] += rate
    return sums


def _differences(
    before: Observation, now: Observation, snapshot: Snapshot, subflows: Container[FourTuple]
) -> Iterator[tuple[FourTuple, str]]:
    """For subflows that have sent something since the observation before."""
    applied = snapshot.applied
    starved = set(_classes_without_traffic(before, now, applied.assignments))
    by_socket = snapshot.classifier == ClassifierKind.SOCKET
    for ends, state in now.sockets.items():
        earlier = before.sockets.get(ends)
        if earlier is None or state.totals.sent == earlier.totals.sent or ends not in subflows:
            continue
        minor = applied.assignments.get(ends, 0)
        if minor in starved:
            yield ends, _STARVED if state.pace is None else _STARVED_BUT_PACED
        elif by_socket and state.minor != minor:
            yield ends, _NOT_IN_CLASS if minor else _IN_CLASS
        elif snapshot.problem_of(FeatureName.PACING) is not None:
            continue
        elif state.pace is not None and ends not in applied.paces:
            yield ends, _PACED
        elif state.pace is None and ends in applied.paces and snapshot.problem_of(FeatureName.STEERING) is not None:
            yield ends, _NOT_PACED


def _classes_without_traffic(
    before: Observation, now: Observation, assignments: Mapping[FourTuple, int]
) -> Iterator[int]:
    """The classes that have counted less than half of what their subflows have sent."""
    sent: Counter[int] = Counter()
    for ends, minor in assignments.items():
        if ends in now.sockets and ends in before.sockets:
            sent[minor] += now.sockets[ends].totals.sent - before.sockets[ends].totals.sent
    for minor, total in sent.items():
        counted = now.classes.get(minor, 0) - before.classes.get(minor, 0)
        if total > _CLASS_LAG_BYTES and counted < total / 2:
            yield minor
