"""The latest decisions that have changed something, for the page: the log has all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from mptcp_throttle.units import Rate
from mptcp_throttled.vocabulary.decision import Decision
from mptcp_throttled.vocabulary.snapshot import Snapshot, Transition

_KEPT: Final = 200


class RecentDecision(NamedTuple):
    """For one direction of a subflow; `at` is in seconds since the epoch. `kind` and `rate` are None if it is free."""

    at: float
    client: str
    client_port: int
    network: str | None
    direction: str
    kind: str | None
    rate: Rate | None
    reason: str


class RecentDecisions:
    """The latest 200. `note` is for one thread, `latest` for any."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Transition, Decision, str]] = deque(maxlen=_KEPT)

    def note(self, at: float, transitions: Iterable[Transition], snapshot: Snapshot) -> None:
        """What a step of the loop has changed, but for the ends of subflows: these are not decided."""
        for transition in transitions:
            if (decision := transition.decision) is not None:
                self._kept.append((at, transition, decision, snapshot.reason(transition.direction, decision)))

    def latest(self, number: int) -> Iterator[RecentDecision]:
        """Up to `number` of them, the latest first."""
        for at, transition, decision, reason in islice(reversed(self._kept.copy()), max(number, 0)):
            client, throttle = transition.ends.client, transition.after
            yield RecentDecision(
                at,
                str(client.address),
                client.port,
                decision.network,
                transition.direction,
                None if throttle is None else throttle.share.kind.word,
                None if throttle is None else throttle.rate,
                reason,
            )
