"""What proxies of a fleet tell each other of budgets, and what each has of the rates that they share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from mptcp_throttle.config.validation import NAME_PATTERN
from mptcp_throttle.model import Address, Direction
from mptcp_throttle.periods import Period
from mptcp_throttled.vocabulary.budgets import AccountKey, Subject

FAR_SECONDS: Final = 256.0
"""A subject that reaches its next stage later than this, at its present rate, is far from it."""

FIELD_PATTERN: Final = NAME_PATTERN + r"\.[0-9a-f]{8}"
"""The field of a proxy (`fleet/keys.py`), as a regular expression."""


def proxy_of(field: str) -> str:
    """The name of the proxy that writes a field. Raises ValueError if none writes such a field."""
    if re.fullmatch(FIELD_PATTERN, field) is None:
        raise ValueError("no field of a proxy")
    return field.rpartition(".")[0]


class Scope(Enum):
    """Which totals of this proxy are asked for."""

    URGENT = auto()
    """Those that have changed, except of subjects far from a stage that were told lately: these wait for `CHANGED`."""

    CHANGED = auto()
    """Those that have changed since they were told."""

    ALL = auto()
    """Those that have not changed, too. None of them counts as told."""


class OwnTotal(NamedTuple):
    """How many bytes a subject has used of a budget at this proxy in a period.

    It reaches its next stage in `seconds`; infinite while it carries nothing. `kept` is what an earlier instance has
    believed of others, as `Elsewhere.by_field`, if nothing was read of them since.
    """

    key: AccountKey
    subject: Subject
    period: Period
    used: int
    seconds: float
    kept: tuple[tuple[str, int], ...] = ()


class Elsewhere(NamedTuple):
    """How many bytes were used at all other proxies together, and at which `rate`, in bytes/s.

    `by_field` has the fields of proxies, and the total of each. Of what an earlier instance has read, these are not all
    if there were many. A field with this proxy's own name is of a ledger that it has lost.
    """

    used: int = 0
    rate: float = 0.0
    by_field: tuple[tuple[str, int], ...] = ()


class UsedElsewhere(NamedTuple):
    """What a subject of a budget has used elsewhere in the period that begins at `start`."""

    key: AccountKey
    subject: Subject
    start: float
    elsewhere: Elsewhere


LATE_SECONDS: Final = 10.0
GONE_SECONDS: Final = 600.0
"""After this time without a report of a proxy, the others divide its part of shared rates (`fleet/members.py`)."""


class Presence(StrEnum):
    """Whether a proxy has been silent for less than `LATE_SECONDS`, less than `GONE_SECONDS`, or longer."""

    REACHABLE = auto()
    LATE = auto()
    GONE = auto()

    @classmethod
    def after(cls, silent: float) -> Self:
        """The presence of a proxy that has been `silent` for this many seconds."""
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
    """What a proxy has reported of itself. Times are in monotonic seconds.

    `heard` is when its last report was new, `looked` when a newer one was last looked for.
    """

    heard: float
    looked: float
    version: str
    load: Load

    @property
    def presence(self) -> Presence:
        """Its presence at `looked`: it stays while the server, or its list of proxies, cannot be read."""
        return Presence.after(self.looked - self.heard)


@dataclass(frozen=True, slots=True)
class FleetState:
    """The state of the exchange with the server. Times are in monotonic seconds.

    `server` is the one in use; None: none is. `exchanged_at` is when all that was due had last been published and read,
    perhaps by an earlier instance; None: never. `proxies` are all proxies of the fleet by name, this one included.
    `refused` counts the values that are not believed; `refusal` says why the last of them is not. `list_problem` says
    why there may be more proxies, or later reports of them.
    """

    name: str
    server: str | None = None
    problem: str | None = None
    exchanged_at: float | None = None
    proxies: Mapping[str, KnownProxy] = field(default_factory=dict)
    refused: int = 0
    refusal: str | None = None
    list_problem: str | None = None


WHOLE: Final = 10**9
"""The whole of a rate that several proxies share: what each has of it is a number from 0 to this."""


class RateKey(NamedTuple):
    """What proxies share one rate for: a client of an access network, by its first address, in one direction."""

    network: str
    client: Address
    direction: Direction


class SharedRates(NamedTuple):
    """What this proxy has of each rate that `size` proxies share, in parts of `WHOLE`.

    For each client it has `base`, and in addition the larger of `each`, which is the same for all clients, and what is
    `leased` for the client. `is_away`: the other proxies cannot be reached.
    """

    size: int
    is_away: bool
    base: int
    each: int = 0
    leased: Mapping[RateKey, int] = MappingProxyType({})

    def held(self, key: RateKey | None) -> int:
        """What this proxy has for a client; None: for one without a lease."""
        return self.base + self.beside(key)

    def beside(self, key: RateKey | None) -> int:
        """What this proxy has for a client in addition to `base`."""
        return max(self.each, 0 if key is None else self.leased.get(key, 0))


@dataclass(frozen=True, slots=True)
class LeaseState:
    """The state of the leases of shared rates, for the operator: why there are none, and how many there are."""

    problem: str | None = None
    leases: int = 0
    rates: SharedRates = SharedRates(1, True, WHOLE)  # noqa: RUF009
