"""What the rules must make of rates, computed apart from the daemon's rules: the rate of each socket, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from byte_mirror import ByteMirror, Place, Share, shares_of_all
from configurations import AILMENTS, is_free, is_weekend
from expected_overflow import NO_RATE, CappedPaths, Expected, ExpectedOverflow
from modelled_proxy import ModelConnection, ModelProxy, ModelSocket
from timeline import VirtualClock

from mptcp_throttle.config.schema import Config
from mptcp_throttle.model import AccessNetwork, Address, Ailment, RateKind
from mptcp_throttled.vocabulary.terms import ClientKey, RuleName

_WEEKEND_CAP: Final = 2_000_000


class Path(NamedTuple):
    """A socket of a connection, and why it may have a cap.

    `relieved_by` is the network of a live and healthy path that is preferred to its own. `located` are all sockets of
    the connection. `only_backups`: those that are live are backups, which MPTCP uses then.
    """

    socket: ModelSocket
    place: Place | None
    relieved_by: AccessNetwork | None
    located: list[tuple[ModelSocket, Place | None]]
    only_backups: bool

    @property
    def is_used(self) -> bool:
        """Whether MPTCP may send on it."""
        return self.only_backups or not self.socket.backup

    @property
    def preferred(self) -> list[ModelSocket]:
        """The sockets of the connection in networks that are preferred to its own."""
        preference = 0 if self.place is None else self.place.network.preference
        return [each for each, at in self.located if at is not None and at.network.preference < preference]

    @property
    def sick(self) -> Ailment | None:
        """That of a path that is preferred and otherwise live."""
        live = (each for each in self.preferred if not _is_stalled(each) and (self.only_backups or not each.backup))
        return next((each.ailment for each in live if each.ailment is not None), None)


class Wanted(NamedTuple):
    """What a socket must be throttled to, None being not at all, and how the reasons that are shown may begin."""

    socket: ModelSocket
    down: Expected | None = None
    up: Expected | None = None
    why_down: tuple[str, ...] = ("",)
    why_up: tuple[str, ...] = ("",)


@dataclass
class ByHand:
    """A rate that an operator has set, until `end` in monotonic seconds."""

    network: str
    kind: RateKind
    rate: int | None
    end: float | None
    client: Address | None = None


@dataclass
class OperatorSettings:
    """What operators have set, as far as the daemon has confirmed it. `pause_end` is infinite until it is resumed."""

    by_hand: list[ByHand] = field(default_factory=list)
    pause_end: float = 0.0

    def present(self, now: float) -> list[ByHand]:
        """What has not ended."""
        return [each for each in self.by_hand if each.end is None or each.end > now]


class ExpectedRates:
    """By the files, the clock, what was carried, and what operators settings."""

    def __init__(self, proxy: ModelProxy, mirror: ByteMirror, settings: OperatorSettings, clock: VirtualClock) -> None:
        self._proxy, self._mirror, self._settings, self._clock = proxy, mirror, settings, clock
        self._overflow = ExpectedOverflow(clock)
        self._by_network: dict[str, tuple[AccessNetwork, dict[RateKind, Expected]]] = {}

    def terms(self, config: Config, place: Place) -> dict[RateKind, Expected]:
        """The rates of a client of a network."""
        return self._terms(config, place.network, place.shares, place)

    def _terms(
        self, config: Config, network: AccessNetwork, shares: Iterable[Share], place: Place | None
    ) -> dict[RateKind, Expected]:
        """Those of a network, if there is no place."""
        at = self._clock.time()
        terms = self._configured(network)
        is_free_now = is_free(network.name, at, config.time_zone)
        if is_free_now:
            terms[RateKind.CAP] = Expected(None, RuleName.SCHEDULE)
        elif network.name == "lte" and is_weekend(at, config.time_zone):
            terms[RateKind.CAP] = Expected(_WEEKEND_CAP, RuleName.SCHEDULE)
        if place is not None and place.device is not None:
            for kind, rate in place.device.rates.items():
                terms[kind] = Expected(None if rate is None else rate.bits_per_second, RuleName.DEVICE)
        if network.overflow is not None and place is not None and RateKind.CAP in terms:
            terms[RateKind.CAP] = self._overflow.raised((network.name, place.client), network.overflow, terms)
        if not is_free_now:
            self._narrow(terms, shares, at)
        if self._settings.by_hand:
            client, now = None if place is None else place.client, self._clock.now
            present = [each for each in self._settings.present(now) if each.network == network.name]
            for is_of_client in (False, True):
                for each in present:
                    if (each.client is not None) == is_of_client and each.client in {None, client}:
                        terms[each.kind] = Expected(each.rate, RuleName.BY_HAND)
        return terms

    def _configured(self, network: AccessNetwork) -> dict[RateKind, Expected]:
        known = self._by_network.get(network.name)
        if known is None or known[0] is not network:
            rates = network.rates.items()
            terms = {kind: Expected(None if rate is None else rate.bits_per_second) for kind, rate in rates}
            known = self._by_network[network.name] = network, terms
        return dict(known[1])

    def _narrow(self, terms: dict[RateKind, Expected], shares: Iterable[Share], at: float) -> None:
        for key, budget, subject in shares:
            account = self._mirror.present.accounts.get(key)
            if account is None:
                continue
            if not budget.rolling and at >= account.period[1] and key not in self._mirror.waiting:
                continue
            fraction = account.used.get(subject, 0) / budget.amount
            for stage in budget.stages:
                if fraction < stage.at:
                    continue
                for kind, rate in stage.rates.items():
                    stage_rate = Expected(rate.bits_per_second, RuleName.BUDGET)
                    terms[kind] = terms.get(kind, NO_RATE).bounded(stage_rate)

    def look(self, config: Config) -> None:
        """The daemon is about to observe: what paths lack of an overflow follows from what sockets have sent."""
        if all(network.overflow is None for network in config.networks):
            return
        clients: dict[ClientKey, CappedPaths] = {}
        if self._settings.pause_end <= self._clock.monotonic():
            for connection in self._proxy.connections.values():
                for path in self._paths(connection):
                    self._add_capped(clients, config, path)
        self._overflow.look(clients)

    def _add_capped(self, clients: dict[ClientKey, CappedPaths], config: Config, path: Path) -> None:
        place = path.place
        if place is None or place.network.overflow is None or path.relieved_by is None or not path.is_used:
            return
        cap = self._own_cap(config, place)
        if cap is None or self.terms(config, place).get(RateKind.CAP, NO_RATE).rate is None:
            return
        overflow = place.network.overflow.bits_per_second
        paths = clients.setdefault((place.network.name, place.client), CappedPaths(overflow, cap, {}, {}))
        paths.capped[path.socket.cookie] = path.socket
        paths.preferred.update((socket.cookie, socket) for socket in path.preferred)

    def _own_cap(self, config: Config, place: Place) -> int | None:
        """That which an overflow raises: of the client's device, or else of the network as it is now."""
        if place.device is not None and RateKind.CAP in place.device.rates:
            rate = place.device.rates[RateKind.CAP]
            return None if rate is None else rate.bits_per_second
        network = place.network
        return self._terms(config, network, shares_of_all(network), None).get(RateKind.CAP, NO_RATE).rate

    def throttles(self, config: Config) -> Iterator[Wanted]:
        """Of each socket with MPTCP, to what its downlink and its uplink must be throttled, and why."""
        is_paused = self._settings.pause_end > self._clock.monotonic()
        for connection in self._proxy.connections.values():
            for path in self._paths(connection):
                if path.place is None or is_paused:
                    yield Wanted(path.socket)
                    continue
                terms = self.terms(config, path.place)
                (down, why_down), (up, why_up) = (_throttle(path, terms, *kinds) for kinds in _KINDS)
                yield Wanted(path.socket, down, up, why_down, why_up)

    def _paths(self, connection: ModelConnection) -> list[Path]:
        place_of = self._mirror.company.place_of
        located = [(socket, place_of(socket)) for socket in connection.subflows.values()]
        only_backups = all(socket.backup for socket, _ in located if not _is_stalled(socket))
        best: AccessNetwork | None = None
        for socket, place in located:
            is_healthy = socket.ailment is None and not _is_stalled(socket) and (only_backups or not socket.backup)
            if place is not None and is_healthy and (best is None or place.network.preference < best.preference):
                best = place.network
        return [
            Path(
                socket,
                place,
                best if best is not None and place is not None and best.preference < place.network.preference else None,
                located,
                only_backups,
            )
            for socket, place in located
        ]


def _is_stalled(socket: ModelSocket) -> bool:
    return socket.stalled or socket.closing


_KINDS: Final = (
    (RateKind.CAP, RateKind.LIMIT, False),
    (RateKind.UPLINK_CAP, RateKind.UPLINK_LIMIT, True),
)
"""Of downlink and uplink."""


def _throttle(
    path: Path, terms: Mapping[RateKind, Expected], cap_kind: RateKind, limit_kind: RateKind, is_uplink: bool
) -> tuple[Expected | None, tuple[str, ...]]:
    """To what a direction must be throttled, and how the reason for that may begin."""
    cap, limit = terms.get(cap_kind, NO_RATE), terms.get(limit_kind, NO_RATE)
    if cap.rate is None and limit.rate is None:
        return None, _NO_CAP
    if is_uplink and path.socket.backup:
        return None, _BACKUP
    if cap.rate is not None and path.is_used and path.relieved_by is not None:
        return cap if limit.rate is None else cap.bounded(limit), (f"{path.relieved_by.name} is live",)
    if limit.rate is not None:
        return limit, _LIMIT
    if not path.is_used:
        return None, _BACKUP
    sick = path.sick
    return None, _NO_PATH if sick is None else (f"wifi is sick: {AILMENTS[sick]}",)


_NO_CAP: Final = "network has no cap", "client has no cap"
_BACKUP: Final = ("backup subflow",)
_LIMIT: Final = "limit of the network", "limit of the client"
_NO_PATH: Final = ("no live subflow",)
