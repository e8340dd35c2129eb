"""What the more preferred paths of clients lack of the `overflow` of a network, from what they deliver.

A client shall have the rate `overflow` in all while it asks for so much. What its more preferred paths do not deliver
of that becomes its cap. Whether it asks for more is seen from what its capped subflows carry: steering lets them send
only while data waits and the preferred paths are saturated, so they carry the cap only then.

The cap rises as soon as the client asks for more and paths lack it. It falls once they have lacked less for a second,
or have not been saturated for two; small differences change nothing. So a path whose rate varies does not change the
cap at each observation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from mptcp_throttle.features import FeatureName
from mptcp_throttle.model import AccessNetwork, Address, FourTuple, RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.vocabulary.decision import Decision
from mptcp_throttled.vocabulary.observation import SocketState
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import UNLIMITED, ClientKey, Lacking

INTERVAL_SECONDS: Final = 0.25

_AVERAGING_SECONDS: Final = 0.3
_FALL_SECONDS: Final = 1.0
_USED_SECONDS: Final = 2.0
_USED: Final = 0.8
"""Of the network's cap: what capped subflows carry at least while they are used for what preferred paths lack."""
_LEAST_CHANGE: Final = 0.1
"""Of the overflow."""
_HOLDS_SECONDS: Final = 6.0
"""Longer than the longest pause between two observations."""
_FORGET_SECONDS: Final = 10.0
_STEP: Final = 8000
"""Bits per second: caps are multiples of it."""


@dataclass(slots=True)
class _Client:
    """`delivered` is in bits/s, on average; `lacking` (bits/s) is what was published, and too high since `high_since`.

    `seen` is when the client last had a capped subflow, `used` when these last carried the network's cap. Times are in
    monotonic seconds.
    """

    delivered: float
    seen: float
    used: float = -math.inf
    lacking: int = 0
    high_since: float | None = None


class _Paths(NamedTuple):
    """The capped subflows of a client in a network, and those of their connections on more preferred ones.

    `cap` is the network's, as it is now without an overflow.
    """

    network: AccessNetwork
    cap: Rate
    capped: set[FourTuple]
    preferred: set[FourTuple]


class Overflow:
    """Follows the clients of networks with an overflow. For one thread, but `lacking` is for any."""

    def __init__(self) -> None:
        self._clients: dict[ClientKey, _Client] = {}
        self._sent: dict[int, int] = {}
        self._looked_at: float | None = None
        self.lacking: Lacking = {}

    def lacking_at(self, now: float) -> Lacking:
        """What paths lack, at `now` (monotonic seconds); nothing if that is not known any more."""
        looked_at = self._looked_at
        return self.lacking if looked_at is not None and now - looked_at < _HOLDS_SECONDS else {}

    def look(self, at: float, sockets: Mapping[FourTuple, SocketState], snapshot: Snapshot) -> bool:
        """Bring `lacking` up to date with what sockets have sent until `at` (monotonic seconds); whether it changed."""
        networks = {network.name: network for network in snapshot.networks if network.overflow is not None}
        is_steered = snapshot.problem_of(FeatureName.STEERING) is None
        paths = _paths(networks, snapshot) if networks and is_steered else {}
        if not is_steered:
            self._clients.clear()
        before, self._looked_at = self._looked_at, at
        added = self._added(sockets, paths)
        for key, of_client in paths.items():
            carried, delivered = (
                8 * sum(added.get(ends, 0) for ends in subflows) for subflows in (of_client.capped, of_client.preferred)
            )
            if before is not None and at > before:
                seconds = at - before
                self._follow(key, of_client, carried / seconds, delivered / seconds, seconds, at)
        for key, client in list(self._clients.items()):
            if at - client.seen > _FORGET_SECONDS:
                del self._clients[key]
        return self._publish()

    def _added(
        self, sockets: Mapping[FourTuple, SocketState], paths: Mapping[ClientKey, _Paths]
    ) -> dict[FourTuple, int]:
        """What sockets have delivered since the last look, in bytes of payload."""
        sent, added = {}, {}
        for ends in {ends for each in paths.values() for ends in (*each.capped, *each.preferred)}:
            socket = sockets.get(ends)
            if socket is not None:
                sent[socket.cookie] = total = socket.totals.sent - socket.totals.retransmitted
                added[ends] = max(total - self._sent.get(socket.cookie, total), 0)
        self._sent = sent
        return added

    def _follow(
        self, key: ClientKey, paths: _Paths, carried: float, delivered: float, seconds: float, at: float
    ) -> None:
        """Rates are in bits/s, over the last `seconds`: what capped subflows have carried, and preferred ones."""
        overflow = 0 if paths.network.overflow is None else paths.network.overflow.bits_per_second
        # Until something is known, its preferred paths deliver all.
        client = self._clients.setdefault(key, _Client(overflow, at))
        client.delivered += min(seconds / _AVERAGING_SECONDS, 1.0) * (delivered - client.delivered)
        client.seen = at
        cap = paths.cap.bits_per_second
        if carried >= _USED * cap:
            client.used = at
        lacks = overflow - client.delivered
        is_used = at - client.used < _USED_SECONDS
        wanted = round(lacks / _STEP) * _STEP if is_used and lacks > cap else 0
        least = _LEAST_CHANGE * overflow
        if wanted > client.lacking + least:
            # What paths carry while the client asks for nothing says nothing of what they lack.
            if client.used == at:
                client.lacking = wanted
            client.high_since = None
        elif wanted < client.lacking - least or (wanted == 0 < client.lacking):
            client.high_since = at if client.high_since is None else client.high_since
            if at - client.high_since >= _FALL_SECONDS:
                client.lacking, client.high_since = wanted, None
        else:
            client.high_since = None

    def _publish(self) -> bool:
        lacking: dict[str, dict[Address, Rate]] = {}
        for (name, address), client in self._clients.items():
            if client.lacking:
                lacking.setdefault(name, {})[address] = Rate(client.lacking)
        if lacking == self.lacking:
            return False
        self.lacking = lacking
        return True


def _paths(networks: Mapping[str, AccessNetwork], snapshot: Snapshot) -> dict[ClientKey, _Paths]:
    paths: dict[ClientKey, _Paths] = {}
    preferences = {network.name: network.preference for network in snapshot.networks}
    for decisions in snapshot.decisions.values():
        for capped in _capped(decisions, networks):
            network = networks[str(capped.network)]
            key = network.name, network.client(capped.subflow.ends.client.address)
            cap = snapshot.terms.by_network[network.name].get(RateKind.CAP, UNLIMITED).rate
            if cap is None:
                continue
            of_client = paths.setdefault(key, _Paths(network, cap, set(), set()))
            of_client.capped.add(capped.subflow.ends)
            of_client.preferred.update(
                each.subflow.ends
                for each in decisions
                if each.network is not None and preferences[each.network] < network.preference
            )
    return paths


def _capped(decisions: tuple[Decision, ...], networks: Mapping[str, AccessNetwork]) -> Iterator[Decision]:
    for decision in decisions:
        share = decision.downlink.share
        if share is not None and share.kind is RateKind.CAP and decision.network in networks:
            yield decision
