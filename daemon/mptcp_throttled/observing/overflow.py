"""Which clients of networks with an `overflow` have capped subflows, and what these and the preferred ones carry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from mptcp_throttle.features import FeatureName
from mptcp_throttle.model import AccessNetwork, Address, FourTuple, RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.policy.lacking import Lack, Sample
from mptcp_throttled.vocabulary.decision import Decision
from mptcp_throttled.vocabulary.observation import SocketState
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import UNLIMITED, ClientKey, Lacking

_HOLDS_SECONDS: Final = 6.0
"""Longer than the longest pause between two observations."""
_FORGET_SECONDS: Final = 10.0


class _Paths(NamedTuple):
    """The capped subflows of a client in a network, and those of their connections on more preferred ones.

    `cap` is the network's, as it is now without an overflow.
    """

    network: AccessNetwork
    cap: Rate
    capped: set[FourTuple]
    preferred: set[FourTuple]


class Overflow:
    """Follows the clients of networks with an overflow. For one thread, but `lacking` is for any.

    A client whose capped subflows carry nothing asks for nothing: of thousands, only the others are followed.
    """

    def __init__(self) -> None:
        self._clients: dict[ClientKey, Lack] = {}
        self._sent: dict[int, int] = {}
        self._looked_at: float | None = None
        self._seen = Snapshot()
        self._paths: Mapping[ClientKey, _Paths] = {}
        self.lacking: Lacking = {}

    def lacking_at(self, now: float) -> Lacking:
        """What paths lack, at `now` (monotonic seconds); nothing if that is not known any more."""
        looked_at = self._looked_at
        return self.lacking if looked_at is not None and now - looked_at < _HOLDS_SECONDS else {}

    @property
    def followed(self) -> int:
        """How many clients are followed."""
        return len(self._clients)

    def look(self, at: float, sockets: Mapping[FourTuple, SocketState], snapshot: Snapshot) -> bool:
        """Bring `lacking` up to date with what sockets have sent until `at` (monotonic seconds); whether it changed."""
        if snapshot.problem_of(FeatureName.STEERING) is not None:
            self._clients.clear()
        self._follow(snapshot)
        seconds = 0.0 if self._looked_at is None else at - self._looked_at
        self._looked_at = at
        sent: dict[int, int] = {}
        for key, paths in self._paths.items():
            carried = self._added(paths.capped, sockets, sent)
            lack = self._clients.get(key)
            if seconds <= 0 or (lack is None and not carried):
                continue
            sample = _sample(paths, carried, self._added(paths.preferred, sockets, sent), sockets, seconds)
            if lack is None:
                # What its preferred paths have delivered is known the next time. Until then, it is all that they shall.
                lack = self._clients[key] = Lack(sample.overflow, at)
                sample = sample._replace(delivered=sample.overflow)
            lack.follow(sample, seconds, at)
        self._sent = sent
        for key, lack in list(self._clients.items()):
            if at - lack.seen > _FORGET_SECONDS or lack.is_idle(at):
                del self._clients[key]
        return self._publish()

    def _follow(self, snapshot: Snapshot) -> None:
        """Find the paths of clients, if another snapshot may have others."""
        seen, self._seen = self._seen, snapshot
        same = (
            snapshot.decisions is seen.decisions
            and snapshot.terms is seen.terms
            and snapshot.networks is seen.networks
            and snapshot.problem_of(FeatureName.STEERING) == seen.problem_of(FeatureName.STEERING)
        )
        if not same:
            networks = {network.name: network for network in snapshot.networks if network.overflow is not None}
            is_steered = snapshot.problem_of(FeatureName.STEERING) is None
            self._paths = _paths(networks, snapshot) if networks and is_steered else {}

    def _added(
        self, subflows: Iterable[FourTuple], sockets: Mapping[FourTuple, SocketState], sent: dict[int, int]
    ) -> int:
        """What these have delivered since the last look, in bytes of payload; `sent` takes what they have in all."""
        added = 0
        for ends in subflows:
            socket = sockets.get(ends)
            if socket is not None:
                total = sent[socket.cookie] = socket.totals.sent - socket.totals.retransmitted
                added += max(total - self._sent.get(socket.cookie, total), 0)
        return added

    def _publish(self) -> bool:
        lacking: dict[str, dict[Address, Rate]] = {}
        for (name, address), client in self._clients.items():
            if client.lacking:
                lacking.setdefault(name, {})[address] = Rate(client.lacking)
        if lacking == self.lacking:
            return False
        self.lacking = lacking
        return True


def _sample(
    paths: _Paths, carried: int, delivered: int, sockets: Mapping[FourTuple, SocketState], seconds: float
) -> Sample:
    """`carried` and `delivered` are what capped and preferred subflows have delivered in these seconds, in bytes."""
    unsent = max((sockets[ends].unsent for ends in paths.preferred if ends in sockets), default=0)
    overflow = 0 if paths.network.overflow is None else paths.network.overflow.bits_per_second
    return Sample(overflow, paths.cap.bits_per_second, 8 * carried / seconds, 8 * delivered / seconds, unsent)


def _paths(networks: Mapping[str, AccessNetwork], snapshot: Snapshot) -> dict[ClientKey, _Paths]:
    paths: dict[ClientKey, _Paths] = {}
    preferences = {network.name: network.preference for network in snapshot.networks}
    for decisions in snapshot.decisions.values():
        for capped in _capped(decisions, networks):
            network = networks[str(capped.network)]
            key = network.name, capped.client or network.client(capped.subflow.ends.client.address)
            cap = _cap_before_overflow(snapshot, network, key[1])
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


def _cap_before_overflow(snapshot: Snapshot, network: AccessNetwork, client: Address) -> Rate | None:
    """Its device's own, if it has one, or else that of the network."""
    device = network.devices.by_first.get(client)
    if device is not None and RateKind.CAP in device.rates:
        return device.rates[RateKind.CAP]
    return snapshot.terms.by_network[network.name].get(RateKind.CAP, UNLIMITED).rate


def _capped(decisions: tuple[Decision, ...], networks: Mapping[str, AccessNetwork]) -> Iterator[Decision]:
    for decision in decisions:
        share = decision.downlink.share
        if share is not None and share.kind is RateKind.CAP and decision.network in networks:
            yield decision
