"""The terms of an access network: its rates as they are now, each with its reason and the time of its next change."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from datetime import tzinfo
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from mptcp_throttle.model import AccessNetwork, Address, Direction, RateKind, Window
from mptcp_throttle.units import Rate
from mptcp_throttled.vocabulary.budgets import Spent
from mptcp_throttled.vocabulary.decision import Share, Throttle, Verdict
from mptcp_throttled.vocabulary.fleet import SharedRates
from mptcp_throttled.vocabulary.operator import Override


class RuleName(StrEnum):
    """What has decided a rate."""

    CONFIGURED = "configured"
    SCHEDULE = "schedule"
    DEVICE = "device"
    OVERFLOW = "overflow"
    BUDGET = "budget"
    BY_HAND = "by hand"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class Term:
    """A present rate; None: unlimited.

    `reason` is why it is not the configured one; None if it is. `next_change` is when it changes by itself, in
    monotonic seconds; None: never. `rule` has decided the rate.
    """

    rate: Rate | None
    reason: str | None = None
    next_change: float | None = None
    rule: RuleName = RuleName.CONFIGURED


_OF_ALL_ADDRESSES: Final = frozenset({RuleName.OVERFLOW, RuleName.FLEET})

UNLIMITED: Final = Term(None)

Terms = Mapping[RateKind, Term]
"""The terms of a network. A kind that is absent is unlimited."""

ClientKey = tuple[str, Address]
"""A client: the name of its access network, and its first address there."""


Shortfalls = Mapping[str, Mapping[Address, Rate]]
"""By network and client: what the client's more preferred paths lack of the network's overflow."""


@dataclass(frozen=True, slots=True)
class PresentTerms:
    """The terms of all access networks at one moment.

    `by_client` has clients whose terms differ from their network's: both kinds of each direction in which they differ.
    `bursts` has the bursts of networks that have one, in bytes. `rates` and `client_rates` are the same without the
    kinds that are unlimited. `has_only_caps`: all rates are caps of downloads, without bursts. `next_change` is when
    the first term changes by itself, in monotonic seconds; None: never.
    """

    by_network: Mapping[str, Terms] = field(default_factory=dict)
    by_client: Mapping[ClientKey, Terms] = field(default_factory=dict)
    bursts: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[str, Mapping[RateKind, Rate]] = field(init=False, compare=False)
    client_rates: Mapping[ClientKey, Mapping[RateKind, Rate]] = field(init=False, compare=False)
    has_only_caps: bool = field(init=False, compare=False)
    next_change: float | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # Thousands of clients often share one object.
        all_terms = {id(terms): terms for terms in (*self.by_network.values(), *self.by_client.values())}
        rates = {number: _rates(terms) for number, terms in all_terms.items()}
        changes = [term.next_change for terms in all_terms.values() for term in terms.values()]
        object.__setattr__(self, "rates", {name: rates[id(terms)] for name, terms in self.by_network.items()})
        object.__setattr__(self, "client_rates", {key: rates[id(terms)] for key, terms in self.by_client.items()})
        only_caps = not self.bursts and all(kind is RateKind.CAP for kinds in rates.values() for kind in kinds)
        object.__setattr__(self, "has_only_caps", only_caps)
        object.__setattr__(self, "next_change", min((at for at in changes if at is not None), default=None))

    def rate(self, share: Share) -> Rate | None:
        """The present rate of a share, with its burst; None if it has none now.

        A limit bounds the cap of its direction.
        """
        if share.client is None:
            rates = self.rates.get(share.network, {})
        else:
            rates = self.client_rates.get((share.network, share.client), {})
        rate = rates.get(share.kind)
        if rate is None:
            return None
        rate, burst = min(rate, rates.get(share.kind.direction.limit, rate)), self.bursts.get(share.network)
        return rate.with_burst(burst) if burst and share.kind.direction is Direction.DOWNLINK else rate

    def term(self, share: Share) -> Term:
        """The term from which a share has its rate."""
        of_client = None if share.client is None else self.by_client.get((share.network, share.client))
        return (self.by_network.get(share.network, {}) if of_client is None else of_client).get(share.kind, UNLIMITED)

    def is_of_all_addresses(self, client: ClientKey) -> bool:
        """Whether a rule has decided the client's terms by what all its addresses carry together."""
        return any(term.rule in _OF_ALL_ADDRESSES for term in self.by_client.get(client, {}).values())

    def is_overflow(self, client: ClientKey) -> bool:
        """Whether an overflow has raised the cap of a client."""
        return self.by_client.get(client, {}).get(RateKind.CAP, UNLIMITED).rule is RuleName.OVERFLOW

    def throttle(self, verdict: Verdict) -> Throttle | None:
        """The throttle that a verdict asks for now; None: the subflow is free."""
        if verdict.share is None or (rate := self.rate(verdict.share)) is None:
            return None
        return Throttle(verdict.share, rate)

    @property
    def kinds(self) -> dict[str, Set[RateKind]]:
        """By network, the kinds with a rate: decisions depend on nothing else of a network's terms."""
        return {name: rates.keys() for name, rates in self.rates.items()}


def _rates(terms: Terms) -> dict[RateKind, Rate]:
    return {kind: term.rate for kind, term in terms.items() if term.rate is not None}


class WallClock(NamedTuple):
    """By how many seconds the time since the epoch exceeds monotonic time, and the time zone; None: this host's."""

    offset: float = 0.0
    zone: tzinfo | None = None


class Facts(NamedTuple):
    """What rules may depend on besides the configuration.

    `spent` has the budgets with reached stages, `shared` this proxy's parts of shared rates; None: it shares none.
    """

    overrides: tuple[Override, ...] = ()
    wall_clock: WallClock = WallClock()
    spent: Spent = MappingProxyType({})
    shortfalls: Shortfalls = MappingProxyType({})
    shared: SharedRates | None = None


class PresentWindow(NamedTuple):
    """The window of a schedule that holds now, and when that changes, in monotonic seconds. None: none, and never."""

    window: Window | None = None
    change: float | None = None


class RuleInput(NamedTuple):
    """What a rule computes terms for: a client of a network, by its first address (None: any), at `now`, in monotonic
    seconds. `present` is the window that holds then."""

    network: AccessNetwork
    client: Address | None
    now: float
    facts: Facts
    present: PresentWindow
