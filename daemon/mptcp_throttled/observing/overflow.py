"""Finds the shortfalls of clients: which have capped subflows on a network with an `overflow`, and what these carry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Final, NamedTuple

from mptcp_throttle.features import FeatureName
from mptcp_throttle.model import AccessNetwork, Address, FourTuple, RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.policy.shortfall import Sample, Shortfall
from mptcp_throttled.vocabulary.decision import Decision, Share
from mptcp_throttled.vocabulary.observation import SocketState
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import UNLIMITED, ClientKey, Shortfalls

_HOLDS_SECONDS: Final = 6.0
"""How long a shortfall is valid after an observation: longer than the longest pause between two observations."""
_FORGET_SECONDS: Final = 10.0
"""How long a client is followed after its capped subflows have ended."""


class _Paths(NamedTuple):
    """The `capped` subflows of a client on a network, and the subflows of their connections on `preferred` networks.

    `cap` is the client's present cap without the overflow, and `raised_cap` with it. `preferred_keys` are the clients
    on networks with an overflow to which capped ones of the preferred subflows belong.
    """

    network: AccessNetwork
    cap: Rate
    raised_cap: Rate
    capped: set[FourTuple]
    preferred: set[FourTuple]
    preferred_keys: set[ClientKey]


class Overflow:
    """Follows the clients of networks with an overflow. For one thread, but `shortfalls` is for any.

    There may be thousands of clients: one is followed only from when its capped subflows carry something.
    """

    def __init__(self) -> None:
        self._clients: dict[ClientKey, Shortfall] = {}
        self._sent: dict[int, int] = {}
        self._observed_at: float | None = None
        self._seen = Snapshot()
        self._paths: Mapping[ClientKey, _Paths] = {}
        self.shortfalls: Shortfalls = {}

    def shortfalls_at(self, now: float) -> Shortfalls:
        """The shortfalls, at `now` (monotonic seconds); none if the last observation is too old."""
        observed_at = self._observed_at
        return self.shortfalls if observed_at is not None and now - observed_at < _HOLDS_SECONDS else {}

    @property
    def followed(self) -> int:
        """How many clients are followed."""
        return len(self._clients)

    def observe(self, at: float, sockets: Mapping[FourTuple, SocketState], snapshot: Snapshot) -> bool:
        """Update `shortfalls` by what sockets have sent until `at` (monotonic seconds); whether they have changed."""
        if snapshot.problem_of(FeatureName.STEERING) is not None:
            self._clients.clear()
        self._follow(snapshot)
        seconds = 0.0 if self._observed_at is None else at - self._observed_at
        self._observed_at = at
        sent: dict[int, int] = {}
        for key, paths in self._paths.items():
            carried = self._added(paths.capped, sockets, sent)
            shortfall = self._clients.get(key)
            if seconds <= 0 or (shortfall is None and not carried):
                continue
            delivered = self._added(paths.preferred, sockets, sent)
            used_up = self._are_used_up(paths.preferred_keys, at)
            sample = _sample(paths, carried, delivered, sockets, seconds, preferred_used_up=used_up)
            if shortfall is None:
                # The next observation tells what its preferred paths deliver. Until then nothing is lacking.
                shortfall = self._clients[key] = Shortfall(sample.overflow, at)
                sample = sample._replace(delivered=sample.overflow)
            shortfall.follow(sample, seconds, at)
        self._sent = sent
        for key, shortfall in list(self._clients.items()):
            if at - shortfall.seen > _FORGET_SECONDS or shortfall.is_idle(at):
                del self._clients[key]
        return self._publish()

    def _follow(self, snapshot: Snapshot) -> None:
        """Find the paths of clients, if they may differ from those of the snapshot before."""
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

    def _are_used_up(self, keys: Set[ClientKey], at: float) -> bool:
        """Whether some of these have a raised cap, and use all of it. One that was raised just now does not yet."""
        raised = [
            (shortfall, self._paths[key])
            for key in keys & self._paths.keys()
            if (shortfall := self._clients.get(key)) is not None and shortfall.rate
        ]
        return bool(raised) and all(
            paths.raised_cap.bits_per_second > paths.cap.bits_per_second
            and shortfall.is_used_up(paths.raised_cap.bits_per_second, at)
            for shortfall, paths in raised
        )

    def _added(
        self, subflows: Iterable[FourTuple], sockets: Mapping[FourTuple, SocketState], sent: dict[int, int]
    ) -> int:
        """The bytes of payload that these have delivered since the last observation.

        `sent` is given their totals, by cookie, for the next observation.
        """
        added = 0
        for ends in subflows:
            socket = sockets.get(ends)
            if socket is not None:
                total = sent[socket.cookie] = socket.totals.sent - socket.totals.retransmitted
                added += max(total - self._sent.get(socket.cookie, total), 0)
        return added

    def _publish(self) -> bool:
        shortfalls: dict[str, dict[Address, Rate]] = {}
        for (name, address), shortfall in self._clients.items():
            if shortfall.rate:
                shortfalls.setdefault(name, {})[address] = Rate(shortfall.rate)
        if shortfalls == self.shortfalls:
            return False
        self.shortfalls = shortfalls
        return True


def _sample(
    paths: _Paths,
    carried: int,
    delivered: int,
    sockets: Mapping[FourTuple, SocketState],
    seconds: float,
    *,
    preferred_used_up: bool,
) -> Sample:
    """`carried` and `delivered` are the bytes that capped and preferred subflows have delivered in these `seconds`."""
    unsent = max((sockets[ends].unsent for ends in paths.preferred if ends in sockets), default=0)
    overflow = 0 if paths.network.overflow is None else paths.network.overflow.bits_per_second
    return Sample(
        overflow, paths.cap.bits_per_second, 8 * carried / seconds, 8 * delivered / seconds, unsent, preferred_used_up
    )


def _paths(networks: Mapping[str, AccessNetwork], snapshot: Snapshot) -> dict[ClientKey, _Paths]:
    paths: dict[ClientKey, _Paths] = {}
    preferences = {network.name: network.preference for network in snapshot.networks}
    for decisions in snapshot.decisions.values():
        capped = [(each, share, _key(each, networks)) for each, share in _capped(decisions, networks)]
        for decision, share, key in capped:
            network = networks[key[0]]
            cap = _cap_before_overflow(snapshot, network, key[1])
            if cap is None:
                continue
            raised_cap = snapshot.terms.rate(share) or cap
            of_client = paths.setdefault(key, _Paths(network, cap, raised_cap, set(), set(), set()))
            of_client.capped.add(decision.subflow.ends)
            of_client.preferred_keys.update(each for *_, each in capped if preferences[each[0]] < network.preference)
            of_client.preferred.update(
                each.subflow.ends
                for each in decisions
                if each.network is not None and preferences[each.network] < network.preference
            )
    return paths


def _key(capped: Decision, networks: Mapping[str, AccessNetwork]) -> ClientKey:
    network = networks[str(capped.network)]
    return network.name, capped.client or network.client(capped.subflow.ends.client.address)


def _cap_before_overflow(snapshot: Snapshot, network: AccessNetwork, client: Address) -> Rate | None:
    """The cap of the client's device, if that has one; otherwise that of the network."""
    device = network.devices.by_first.get(client)
    if device is not None and RateKind.CAP in device.rates:
        return device.rates[RateKind.CAP]
    return snapshot.terms.by_network[network.name].get(RateKind.CAP, UNLIMITED).rate


def _capped(decisions: tuple[Decision, ...], networks: Mapping[str, AccessNetwork]) -> Iterator[tuple[Decision, Share]]:
    for decision in decisions:
        share = decision.downlink.share
        if share is not None and share.kind is RateKind.CAP and decision.network in networks:
            yield decision, share
