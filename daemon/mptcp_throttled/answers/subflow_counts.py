"""Subflows by access network and by rate kind, counted again only when something has changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from mptcp_throttle.model import RateKind
from mptcp_throttled.vocabulary.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class SubflowCounts:
    """Live and throttled subflows by network, and subflows and uplinks by rate kind."""

    live: Counter[str | None] = field(default_factory=Counter)
    throttled: Counter[str] = field(default_factory=Counter)
    kinds: Counter[RateKind] = field(default_factory=Counter)

    @classmethod
    def of(cls, snapshot: Snapshot) -> SubflowCounts:
        """Count the subflows of a snapshot."""
        throttles = [throttled.throttle for throttled in snapshot.throttled.values()]
        kinds = Counter(throttle.share.kind for throttle in throttles)
        kinds.update(throttle.share.kind for throttle in snapshot.uplinks.values())
        return cls(
            Counter(decision.network for decision in snapshot.all_decisions()),
            Counter(throttle.share.network for throttle in throttles),
            kinds,
        )


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
        )
        if not is_same:
            counts = SubflowCounts.of(snapshot)
            self._latest = snapshot, counts
        return counts
