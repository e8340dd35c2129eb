"""The latest decisions that have changed something, for the page. (The log has all of them.)"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, NamedTuple

from mptcp_throttle.rpc import Json
from mptcp_throttled.vocabulary.decision import Decision
from mptcp_throttled.vocabulary.snapshot import Snapshot, Transition

KEPT: Final = 2000
"""How many decisions are kept."""

_MOST: Final = 200


class Noted(NamedTuple):
    """A decision that was applied `at` a time, in seconds since the epoch; `rule` has decided the rate, if any."""

    at: float
    transition: Transition
    decision: Decision
    reason: str
    device: str | None
    rule: str | None


class RecentDecisions:
    """The latest `KEPT` decisions. `note` is for one thread, `latest` and `since` for any."""

    def __init__(self) -> None:
        self._kept: deque[Noted] = deque(maxlen=KEPT)

    def note(self, at: float, transitions: Iterable[Transition], snapshot: Snapshot) -> None:
        """Keep what a step of the loop has changed, except the ends of subflows: these are no decisions."""
        for transition in transitions:
            if (decision := transition.decision) is not None:
                reason = snapshot.reason(transition.direction, decision)
                device = snapshot.device(decision.network, transition.ends.client.address)
                after = transition.after
                rule = None if after is None else snapshot.terms.term(after.share).rule
                self._kept.append(Noted(at, transition, decision, reason, device, rule))

    def latest(self, number: int, client: Callable[[Noted], bool] = lambda _: True) -> list[Json]:
        """Up to `number` decisions about a `client`, and no more than 200, the latest first, as JSON.

        Each is for one direction of a subflow; `at` is in seconds since the epoch. `kind`, `rate` and `rule` are null
        if it is free.
        """
        matching = (noted for noted in reversed(self._kept.copy()) if client(noted))
        return [_encode(noted) for noted in islice(matching, min(max(number, 0), _MOST))]

    @property
    def since(self) -> float | None:
        """When the oldest kept decision was applied, in seconds since the epoch; None: none was displaced yet."""
        kept = self._kept.copy()
        return kept[0].at if len(kept) == KEPT else None


def _encode(noted: Noted) -> Json:
    transition, after = noted.transition, noted.transition.after
    return {
        "at": noted.at,
        "client": str(transition.ends.client.address),
        "client_port": transition.ends.client.port,
        "device": noted.device,
        "network": noted.decision.network,
        "direction": transition.direction,
        "kind": None if after is None else after.share.kind.word,
        "rate": None if after is None else str(after.rate),
        "rate_bps": None if after is None else after.rate.bits_per_second,
        "rule": noted.rule,
        "reason": noted.reason,
    }
