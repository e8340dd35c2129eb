"""The latest decisions that have changed something, for those who look: the log has all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from mptcp_throttle.model import FourTuple
from mptcp_throttled.vocabulary.decision import Decision, Throttle
from mptcp_throttled.vocabulary.snapshot import Snapshot, Transition, why_free, why_uplink_free

_KEPT: Final = 200


class RecentDecision(NamedTuple):
    """For one subflow; `at` is in seconds since the epoch. `decision` is a `RateKind`, `free` or `uplink_free`."""

    at: float
    client: str
    client_port: int
    network: str | None
    decision: str
    rate: str | None
    reason: str


class RecentDecisions:
    """The latest 200. `note` is for one thread, `latest` for any."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Decision, Throttle | None, bool, str]] = deque(maxlen=_KEPT)

    def note(
        self,
        at: float,
        transitions: Iterable[Transition],
        uplinks: Mapping[FourTuple, Decision | None],
        before: Snapshot,
        after: Snapshot,
    ) -> None:
        """What a step of the loop has changed, but for the ends of subflows: nobody has decided these."""
        for transition in transitions:
            decision = transition.decision
            if transition.after is not None:
                decision = transition.after.decision
                self._kept.append((at, decision, decision.throttle, False, decision.reason))
            elif decision is not None:
                self._kept.append((at, decision, None, False, why_free(decision)))
        for ends, decision in uplinks.items():
            throttle = after.uplinks.get(ends)
            if decision is not None and throttle != before.uplinks.get(ends):
                reason = why_uplink_free(decision) if throttle is None else decision.uplink_reason
                self._kept.append((at, decision, throttle, True, reason))

    def latest(self, number: int) -> Iterator[RecentDecision]:
        """Up to `number` of them, the latest first."""
        for at, decision, throttle, is_uplink, reason in islice(reversed(self._kept.copy()), max(number, 0)):
            free = "uplink_free" if is_uplink else "free"
            client = decision.subflow.ends.client
            yield RecentDecision(
                at,
                str(client.address),
                client.port,
                decision.network,
                free if throttle is None else throttle.share.kind,
                None if throttle is None else str(throttle.rate),
                reason,
            )
