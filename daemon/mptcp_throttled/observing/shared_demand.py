"""What each client wants of the rates that several proxies share, from what its subflows carry at this proxy.

A client whose subflows carry most of what this proxy has of its rate asks for more. How much more cannot be known, so
it wants the whole rate. Any other wants somewhat more than it carries. What is wanted rises at once, and falls after
some seconds in which less was wanted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from mptcp_throttle.model import Direction, FourTuple
from mptcp_throttled.vocabulary.decision import Share
from mptcp_throttled.vocabulary.fleet import WHOLE, RateKey
from mptcp_throttled.vocabulary.observation import SocketState
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.traffic import SocketTotals

INTERVAL_SECONDS: Final = 0.5
"""Between two observations."""

_MOST: Final = 0.7
"""A client that carries this fraction of what this proxy has asks for more. Rates count headers, sockets payload."""
_ROOM: Final = 1.5
"""A client that does not ask for more wants this times what it carries."""
_STEP: Final = WHOLE // 32
"""What is wanted is a multiple of it: other proxies need not be told of small changes."""
_LEAST: Final = 0.0005
"""A smaller fraction of the rate counts as nothing: each proxy has more than that without a lease."""
_AVERAGED_SECONDS: Final = 1.0
"""Time constant of the average of what is carried."""
_FALL_SECONDS: Final = 3.0
"""How long less must have been wanted before what is wanted falls."""


class _Subflow(NamedTuple):
    """A subflow that a shared rate throttles, its direction, and the share whose rate it has."""

    ends: FourTuple
    share: Share


@dataclass(slots=True)
class _Client:
    """A client: what it has `carried` on average, as a fraction of the shared rate, and what is `wanted`, of `WHOLE`.

    `high_since` is since when `wanted` is more than what is wanted now, in monotonic seconds.
    """

    carried: float = 0.0
    wanted: int = 0
    high_since: float | None = None

    def follow(self, carried: float, held: float, seconds: float, at: float) -> None:
        """In the last `seconds` until `at`, it has carried `carried`, while this proxy `held` a part of its rate.

        Both are fractions of the shared rate.
        """
        self.carried += min(seconds / _AVERAGED_SECONDS, 1.0) * (carried - self.carried)
        asks = max(self.carried, carried)
        if asks < _LEAST:
            wanted = 0
        elif asks >= _MOST * held:
            wanted = WHOLE
        else:
            wanted = min(math.ceil(asks * _ROOM * WHOLE / _STEP) * _STEP, WHOLE)
        if wanted >= self.wanted:
            self.wanted, self.high_since = wanted, None
        elif self.high_since is None:
            self.high_since = at
        elif at - self.high_since >= _FALL_SECONDS:
            self.wanted, self.high_since = wanted, None


class SharedDemand:
    """Follows the clients of networks whose rates are shared. For one thread."""

    def __init__(self) -> None:
        self._clients: dict[RateKey, _Client] = {}
        self._carried: dict[tuple[Direction, int], int] = {}
        self._observed_at: float | None = None
        self._seen = Snapshot()
        self._subflows: Mapping[RateKey, list[_Subflow]] = {}

    def observe(self, at: float, sockets: Mapping[FourTuple, SocketState], snapshot: Snapshot) -> dict[RateKey, int]:
        """What clients want, of `WHOLE`, by what their sockets have carried until `at` (monotonic seconds)."""
        shared = snapshot.facts.shared
        if shared is None:
            return {}
        if snapshot.decisions is not self._seen.decisions or snapshot.networks is not self._seen.networks:
            self._subflows = _subflows(snapshot)
        self._seen = snapshot
        seconds = 0.0 if self._observed_at is None else at - self._observed_at
        self._observed_at = at
        carried: dict[tuple[Direction, int], int] = {}
        for key, subflows in self._subflows.items():
            part = 0.0
            for ends, share in subflows:
                socket, rate = sockets.get(ends), snapshot.terms.rate(share)
                if socket is None or rate is None:
                    continue
                place = key.direction, socket.cookie
                total = carried[place] = _total(socket.totals, key.direction)
                added = max(total - self._carried.get(place, total), 0)
                part += 8 * added / rate.bits_per_second
            if seconds > 0 and (part or key in self._clients):
                held = min(shared.held(key) / WHOLE, 1.0)
                client = self._clients.setdefault(key, _Client())
                client.follow(part / seconds * held, held, seconds, at)
        self._carried = carried
        for key, client in list(self._clients.items()):
            if key not in self._subflows or (not client.wanted and client.carried < _LEAST):
                del self._clients[key]
        return {key: client.wanted for key, client in self._clients.items() if client.wanted}


def _total(totals: SocketTotals, direction: Direction) -> int:
    return totals.sent if direction is Direction.DOWNLINK else totals.received


def _subflows(snapshot: Snapshot) -> dict[RateKey, list[_Subflow]]:
    """The subflows with a share on a network whose rates are shared, by client and direction."""
    shared = {network.name for network in snapshot.networks if network.shared}
    by_key: dict[RateKey, list[_Subflow]] = {}
    for decision in snapshot.all_decisions() if shared else ():
        if decision.network not in shared or decision.client is None:
            continue
        for direction in Direction:
            share = decision.of(direction).share
            if share is not None:
                client = decision.client if share.client is None else share.client
                key = RateKey(str(decision.network), client, direction)
                by_key.setdefault(key, []).append(_Subflow(decision.subflow.ends, share))
    return by_key
