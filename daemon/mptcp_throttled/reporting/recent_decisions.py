"""The latest decisions that have changed something, for the page: the log has all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from mptcp_throttle.rpc import Json
from mptcp_throttled.vocabulary.decision import Decision
from mptcp_throttled.vocabulary.snapshot import Snapshot, Transition

_KEPT: Final = 200


class RecentDecisions:
    """The latest 200. `note` is for one thread, `latest` for any."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Transition, Decision, str, str | None]] = deque(maxlen=_KEPT)

    def note(self, at: float, transitions: Iterable[Transition], snapshot: Snapshot) -> None:
        """What a step of the loop has changed, but for the ends of subflows: these are not decided."""
        for transition in transitions:
            if (decision := transition.decision) is not None:
                reason = snapshot.reason(transition.direction, decision)
                device = snapshot.device(decision.network, transition.ends.client.address)
                self._kept.append((at, transition, decision, reason, device))

    def latest(self, number: int) -> list[Json]:
        """Up to `number` of them, the latest first, as JSON.

        For one direction of a subflow; `at` is in seconds since the epoch. `kind` and `rate` are null if it is free.
        """
        return [
            {
                "at": at,
                "client": str(transition.ends.client.address),
                "client_port": transition.ends.client.port,
                "device": device,
                "network": decision.network,
                "direction": transition.direction,
                "kind": None if transition.after is None else transition.after.share.kind.word,
                "rate": None if transition.after is None else str(transition.after.rate),
                "reason": reason,
            }
            for at, transition, decision, reason, device in islice(reversed(self._kept.copy()), max(number, 0))
        ]
