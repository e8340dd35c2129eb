"""Compares what flows with what is applied: measures rates, and finds subflows whose rate is not enforced.

What the kernel says of a subflow (class, pace and bytes of its socket; bytes of its class) is observed every second, or
every few seconds. A difference counts if it is still seen `GRACE_SECONDS` after it was seen first, and the subflow has
sent all that time. For the kernel program may decide before the daemon does, and a socket gets its class only when its
queue has drained.

A throttled uplink may exceed its rate for seconds, until its client hears of its debt or is policed. So the bytes that
its socket receives are compared with those that the program has seen acknowledged, and with the rate only while the
uplink is policed. Where no qdisc holds the caps of downloads, but paces and steering do, what is sent is compared with
the rate in the same way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Final

from immutables import Map

from mptcp_throttle.features import FeatureName
from mptcp_throttle.model import ClassifierKind, Direction, FourTuple
from mptcp_throttle.units import Rate
from mptcp_throttled.vocabulary.decision import Share, Throttle
from mptcp_throttled.vocabulary.kernel_plan import payload_pace
from mptcp_throttled.vocabulary.observation import Observation, SocketState
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.traffic import SocketTotals

GRACE_SECONDS: Final = 3.0
_LONG_SECONDS: Final = 10.0
# A few packets may be sent between the readings of counters and sockets; the slowest caps pass little more.
_LAG_BYTES: Final = 3000
# Twice POLICED_BURST_NS and POLICED_BURST_KIB of kernel/bpf/uplink.bpf.c.
_TOLERATED_BURST_SECONDS: Final = 0.5
_TOLERATED_BURST_BYTES: Final = 64 << 10

_SENT: Final = attrgetter("sent")
_RECEIVED: Final = attrgetter("received")

_STARVED: Final = "its packets do not reach its class"
_STARVED_BUT_PACED: Final = f"{_STARVED}, only its pace limits it"
_NOT_IN_CLASS: Final = "its socket is not in its class"
_IN_CLASS: Final = "its socket has a class, but no rate applies"
_NOT_PACED: Final = "its socket is not paced"
_PACED: Final = "its socket has a pace, but no rate applies"
_UNSEEN: Final = "its ACKs do not reach the program that throttles uplinks"
_TOO_FAST: Final = "it carries more than its rate, and there is no HTB that could hold it"
_NOT_POLICED: Final = "its uplink carries more than its rate: its data do not reach the program that drops the excess"


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between what is applied for a subflow and what it does, and since when (monotonic seconds)."""

    text: str
    since: float


@dataclass(frozen=True, slots=True)
class Excess:
    """The bytes of payload that a share has carried beyond its rate since `since` (monotonic seconds).

    A share without a burst has carried more than its rate in each observation since then.
    """

    bytes: float
    since: float


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What the latest observation shows.

    Rates are in bytes of payload per second: `rates` and `received_rates` since the observation before, `long_rates`
    over the last 10 to 20 seconds, or since the subflow began. `network_rates` and `received_network_rates` are the
    sums by access network; a network without traffic is absent. `excesses` are those of all shares with policed
    uplinks, or with caps that no qdisc holds. `anchors` are the observations since which `long_rates` are measured.
    """

    latest: Observation | None = None
    rates: Mapping[FourTuple, float] = field(default_factory=Map)
    received_rates: Mapping[FourTuple, float] = field(default_factory=Map)
    long_rates: Mapping[FourTuple, float] = field(default_factory=Map)
    network_rates: Mapping[str, float] = field(default_factory=Map)
    received_network_rates: Mapping[str, float] = field(default_factory=Map)
    differences: Mapping[Direction, Mapping[FourTuple, Difference]] = field(default_factory=Map)
    excesses: Mapping[Share, Excess] = field(default_factory=Map)
    anchors: tuple[Observation, ...] = ()
    not_enforced_in: Mapping[Direction, Mapping[FourTuple, str]] = field(init=False)
    """Why the rate of a subflow in a direction is not enforced, for those with a difference that has lasted."""
    not_enforced: Mapping[FourTuple, str] = field(init=False)
    """The same, with the reasons of both directions in one text."""

    def __post_init__(self) -> None:
        at = 0.0 if self.latest is None else self.latest.at
        lasting = {
            direction: {ends: d.text for ends, d in differences.items() if at - d.since >= GRACE_SECONDS}
            for direction, differences in self.differences.items()
        }
        reasons: dict[FourTuple, list[str]] = defaultdict(list)
        for ends, text in chain.from_iterable(texts.items() for texts in lasting.values()):
            reasons[ends].append(text)
        object.__setattr__(self, "not_enforced_in", lasting)
        object.__setattr__(self, "not_enforced", {ends: "; ".join(texts) for ends, texts in reasons.items()})

    def why_not(self, direction: Direction, ends: FourTuple) -> str | None:
        """Why the rate of a subflow in a direction is not enforced; None if it is, or there is none."""
        return self.not_enforced_in.get(direction, {}).get(ends)

    def after(self, now: Observation, snapshot: Snapshot) -> Enforcement:
        """What one more observation shows, by what the snapshot says is applied."""
        before = self.latest
        if before is None:
            return Enforcement(now, anchors=(now,))
        networks = {d.subflow.ends: d.network for d in snapshot.all_decisions()}
        policed, unheld = dict(_policed(snapshot)), dict(_unheld(snapshot))
        excesses = {
            **_excesses(before, now, policed, _RECEIVED, self.excesses),
            **_excesses(before, now, unheld, _SENT, self.excesses),
        }
        downlinks = self._since(Direction.DOWNLINK, _differences(before, now, snapshot, networks), now.at)
        uplinks = self._since(Direction.UPLINK, _unseen_uplinks(before, now, snapshot), now.at)
        is_due = now.at - self.anchors[-1].at >= _LONG_SECONDS
        sent, received = _rates(before, now, _SENT), _rates(before, now, _RECEIVED)
        return Enforcement(
            now,
            sent,
            received,
            _rates(self.anchors[0], now, _SENT),
            _network_rates(sent, networks),
            _network_rates(received, networks),
            {
                Direction.DOWNLINK: {**dict(_exceeding(unheld, excesses, _TOO_FAST)), **downlinks},
                Direction.UPLINK: {**dict(_exceeding(policed, excesses, _NOT_POLICED)), **uplinks},
            },
            excesses,
            (self.anchors[-1], now) if is_due else self.anchors,
        )

    def _since(
        self, direction: Direction, texts: Iterable[tuple[FourTuple, str]], now: float
    ) -> dict[FourTuple, Difference]:
        """The differences with these texts, each since it was seen first."""
        earlier = self.differences.get(direction, {})
        return {ends: Difference(text, earlier[ends].since if ends in earlier else now) for ends, text in texts}


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
    """The differences of downloads, for subflows that have sent something since the observation before."""
    applied = snapshot.applied
    starved = set() if snapshot.without_qdisc else set(_classes_without_traffic(before, now, applied.assignments))
    by_socket = snapshot.classifier == ClassifierKind.SOCKET and not snapshot.without_qdisc
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
        sent[minor] += _carried(before, now, ends, _SENT)
    for minor, total in sent.items():
        counted = now.classes.get(minor, 0) - before.classes.get(minor, 0)
        if total > _LAG_BYTES and counted < total / 2:
            yield minor


def _unseen_uplinks(before: Observation, now: Observation, snapshot: Snapshot) -> Iterator[tuple[FourTuple, str]]:
    """The throttled uplinks of whose bytes the program has seen less than half acknowledged."""
    for ends in snapshot.uplinks:
        received = _carried(before, now, ends, _RECEIVED)
        if received > _LAG_BYTES and now.uplinks.get(ends, 0) - before.uplinks.get(ends, 0) < received / 2:
            yield ends, _UNSEEN


def _excesses(
    before: Observation,
    now: Observation,
    throttles: Mapping[FourTuple, Throttle],
    of: Callable[[SocketTotals], int],
    earlier: Mapping[Share, Excess],
) -> dict[Share, Excess]:
    """The excesses of the shares of these throttles, after one more observation."""
    carried: Counter[Share] = Counter()
    rates: dict[Share, Rate] = {}
    for ends, throttle in throttles.items():
        carried[throttle.share] += _carried(before, now, ends, of)
        rates[throttle.share] = throttle.rate
    excesses = {}
    for share, rate in rates.items():
        over = carried[share] - payload_pace(rate, 1) * (now.at - before.at)
        old = earlier.get(share)
        # An observation within the rate ends the excess; with a burst, it only reduces it by the unused rate.
        sum_ = 0.0 if old is None or (over <= 0 and not rate.burst) else max(old.bytes + over, 0.0)
        excesses[share] = Excess(sum_, old.since if old is not None and old.bytes and sum_ else now.at)
    return excesses


def _exceeding(
    throttles: Mapping[FourTuple, Throttle], excesses: Mapping[Share, Excess], text: str
) -> Iterator[tuple[FourTuple, Difference]]:
    """The subflows whose share has carried more than its rate, its burst and what is tolerated."""
    for ends, throttle in throttles.items():
        excess, tolerated = excesses[throttle.share], _TOLERATED_BURST_SECONDS * payload_pace(throttle.rate, 1)
        if excess.bytes > throttle.rate.burst + tolerated + _TOLERATED_BURST_BYTES:
            yield ends, Difference(text, excess.since)


def _unheld(snapshot: Snapshot) -> Iterator[tuple[FourTuple, Throttle]]:
    """The throttled downloads that no qdisc holds."""
    if snapshot.without_qdisc:
        yield from ((ends, throttled.throttle) for ends, throttled in snapshot.throttled.items())


def _policed(snapshot: Snapshot) -> Iterator[tuple[FourTuple, Throttle]]:
    return ((ends, snapshot.uplinks[ends]) for ends in snapshot.policed if ends in snapshot.uplinks)


def _carried(before: Observation, now: Observation, ends: FourTuple, of: Callable[[SocketTotals], int]) -> int:
    """The bytes that a socket has sent or received between two observations; 0 if it is not in both."""
    if ends not in before.sockets or ends not in now.sockets:
        return 0
    return of(now.sockets[ends].totals) - of(before.sockets[ends].totals)
