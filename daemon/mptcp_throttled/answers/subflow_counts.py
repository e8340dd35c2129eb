"""Counts subflows by access network, by state and by kind of rate, only when something has changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final

from mptcp_throttle.model import Ailment, RateKind
from mptcp_throttled.vocabulary.snapshot import Snapshot

STATES: Final = ("free", "cap", "limit", "backup")
_FREE, _CAP, _LIMIT, _BACKUP = range(len(STATES))
_THROTTLED_UPLINKS: Final = ("cap", "limit", "policed")
UPLINK_STATES: Final = ("free", *_THROTTLED_UPLINKS)


@dataclass(frozen=True, slots=True)
class SubflowCounts:
    """Numbers of subflows: by network and state, in each direction; by kind of rate; sick ones by network and ailment.

    `connections` has the numbers of connections with a `single` subflow and with several (`multi`).
    """

    downlinks: Counter[tuple[str | None, str]] = field(default_factory=Counter)
    uplinks: Counter[tuple[str | None, str]] = field(default_factory=Counter)
    kinds: Counter[RateKind] = field(default_factory=Counter)
    connections: Counter[str] = field(default_factory=Counter)
    sick: Counter[tuple[str, Ailment]] = field(default_factory=Counter)

    @classmethod
    def of(cls, snapshot: Snapshot) -> SubflowCounts:
        """Count the subflows of a snapshot."""
        throttled, uplinks, policed = snapshot.throttled, snapshot.uplinks, snapshot.policed
        kinds = Counter(subflow.throttle.share.kind for subflow in throttled.values())
        kinds.update(throttle.share.kind for throttle in uplinks.values())
        # With thousands of subflows, to count each one in a Counter takes several times as long.
        by_state: defaultdict[str | None, list[int]] = defaultdict(lambda: [0] * len(STATES))
        counts = cls(kinds=kinds)
        several = 0
        for decisions in snapshot.decisions.values():
            several += len(decisions) > 1
            for decision in decisions:
                subflow = decision.subflow
                if decision.downlink.share is None or (applied := throttled.get(subflow.ends)) is None:
                    place = _BACKUP if subflow.backup else _FREE
                else:
                    place = _CAP if applied.throttle.share.kind is RateKind.CAP else _LIMIT
                by_state[decision.network][place] += 1
                if subflow.ailment is not None and decision.network is not None:
                    counts.sick[decision.network, subflow.ailment] += 1
                if decision.uplink.share is not None and (uplink := uplinks.get(subflow.ends)) is not None:
                    state = "policed" if subflow.ends in policed else uplink.share.kind.word
                    counts.uplinks[decision.network, state] += 1
        for network, numbers in by_state.items():
            counts.downlinks.update({(network, state): n for state, n in zip(STATES, numbers, strict=True)})
            throttled_uplinks = sum(counts.uplinks[network, state] for state in _THROTTLED_UPLINKS)
            counts.uplinks[network, "free"] = sum(numbers) - throttled_uplinks
        counts.connections.update(multi=several, single=len(snapshot.decisions) - several)
        return counts

    def live(self, network: str | None) -> int:
        """How many subflows a network has."""
        return sum(self.downlinks[network, state] for state in STATES)

    def throttled(self, network: str) -> int:
        """How many subflows of a network are capped or limited."""
        return self.downlinks[network, "cap"] + self.downlinks[network, "limit"]


class CountedSubflows:
    """The counts of the latest snapshot: with thousands of subflows they take milliseconds. For any thread."""

    def __init__(self) -> None:
        self._latest = Snapshot(), SubflowCounts()

    def of(self, snapshot: Snapshot) -> SubflowCounts:
        """The counts of this snapshot."""
        counted, counts = self._latest
        is_same = (
            snapshot.decisions is counted.decisions
            and snapshot.throttled is counted.throttled
            and snapshot.uplinks is counted.uplinks
            and snapshot.policed is counted.policed
        )
        if not is_same:
            counts = SubflowCounts.of(snapshot)
            self._latest = snapshot, counts
        return counts
