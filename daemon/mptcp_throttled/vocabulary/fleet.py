"""What proxies of a fleet tell each other of budgets, and what each has of the rates that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from mptcp_throttle.model import Address, Direction
from mptcp_throttle.periods import Period
from mptcp_throttled.vocabulary.budgets import AccountKey, Subject

FAR_SECONDS: Final = 256.0
"""A subject that is so long from a stage at its present rate is far from it: seconds do not matter."""


class Scope(Enum):
    """Which totals of this proxy are meant: those that have changed and matter at once, all that have, or every one.

    With every one, nothing counts as told.
    """

    SOON = auto()
    CHANGED = auto()
    EVERY = auto()


class OwnTotal(NamedTuple):
    """What a subject has used of a budget at this proxy in a period; in so many `seconds` it reaches a stage.

    These are infinite while it carries nothing.
    """

    key: AccountKey
    subject: Subject
    period: Period
    used: int
    seconds: float


class Elsewhere(NamedTuple):
    """What was used at all proxies but this one, in bytes, and how fast that grows, in bytes/s.

    `by_proxy` has the part of each, by its name. One with the name of this proxy is of a ledger that it has lost.
    """

    used: int = 0
    rate: float = 0.0
    by_proxy: tuple[tuple[str, int], ...] = ()


class UsedElsewhere(NamedTuple):
    """What a subject of a budget has used elsewhere in the period that begins at `start`."""

    key: AccountKey
    subject: Subject
    start: float
    elsewhere: Elsewhere


LATE_SECONDS: Final = 10.0
GONE_SECONDS: Final = 600.0
"""From then on, other proxies divide its part of shared rates (`fleet/members.py`)."""


class Presence(StrEnum):
    """Of a proxy, by how long it has said nothing: less than `LATE_SECONDS`, or than `GONE_SECONDS`, or longer."""

    REACHABLE = auto()
    LATE = auto()
    GONE = auto()

    @classmethod
    def after(cls, silent: float) -> Self:
        """After so many seconds."""
        if silent < LATE_SECONDS:
            return cls.REACHABLE
        return cls.LATE if silent < GONE_SECONDS else cls.GONE


class Load(NamedTuple):
    """What a proxy carries now: payload to and from clients in bits/s, connections, and subflows with a rate."""

    sent_bps: int = 0
    received_bps: int = 0
    connections: int = 0
    throttled: int = 0


class KnownProxy(NamedTuple):
    """What a proxy has reported of itself, and when it was `heard` of last, in monotonic seconds."""

    heard: float
    version: str
    load: Load


@dataclass(frozen=True, slots=True)
class FleetState:
    """Of the exchange with the server: times are in monotonic seconds.

    `server` is the one in use, None: none is. At `exchanged_at`, all that is due was published and read, by an earlier
    instance if not by this one; None: it never was. `proxies` are all of the fleet by name, this one included.
    `refused` counts values that are not believed, of which `refusal` is the last one.
    """

    name: str
    server: str | None = None
    problem: str | None = None
    exchanged_at: float | None = None
    proxies: Mapping[str, KnownProxy] = field(default_factory=dict)
    refused: int = 0
    refusal: str | None = None

    def presence(self, proxy: KnownProxy) -> Presence:
        """As of the last exchange: while the server is away, none of the others can be heard."""
        return Presence.after(0.0 if self.exchanged_at is None else self.exchanged_at - proxy.heard)


WHOLE: Final = 10**9
"""A rate that several proxies share is divided into so many parts."""


class RateKey(NamedTuple):
    """The rates that proxies share for a client of an access network, by its first address, in a direction."""

    network: str
    client: Address
    direction: Direction


class SharedRates(NamedTuple):
    """What this proxy has of each rate that `size` proxies share, of `WHOLE`.

    That is `base` for each client, and beside it what is `leased` for it, or `each` has. `is_away`: the other proxies
    cannot be reached.
    """

    size: int
    is_away: bool
    base: int
    each: int = 0
    leased: Mapping[RateKey, int] = MappingProxyType({})

    def held(self, key: RateKey | None) -> int:
        """What a client has; None: one without a lease."""
        return self.base + self.beside(key)

    def beside(self, key: RateKey | None) -> int:
        """What it has beside `base`."""
        return max(self.each, 0 if key is None else self.leased.get(key, 0))


@dataclass(frozen=True, slots=True)
class LeaseState:
    """Of the leases of shared rates, for the operator: why there are none, and how many there are."""

    problem: str | None = None
    leases: int = 0
    rates: SharedRates = SharedRates(1, True, WHOLE)  # noqa: RUF009
