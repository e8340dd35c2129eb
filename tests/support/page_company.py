"""An invented company with three access networks: its configuration, and what the daemon's rules and events say of it.

It is a Thursday afternoon. Both clocks show the same, so that ends of rates are moments.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from ipaddress import ip_address, ip_network
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from mptcp_throttle.config.changes import Change
from mptcp_throttle.model import (
    AccessNetwork,
    Address,
    Ailment,
    Budget,
    Counting,
    Devices,
    Every,
    Health,
    NamedClient,
    Per,
    RateKind,
    Stage,
    Window,
)
from mptcp_throttle.units import Rate
from mptcp_throttle.when import When
from mptcp_throttled.answers.status import describe_rates, describe_term
from mptcp_throttled.policy.terms import rule_input, steps
from mptcp_throttled.reporting.budget_events import budget_events
from mptcp_throttled.reporting.step_events import WindowEvents, reloaded, set_by_hand
from mptcp_throttled.vocabulary.budgets import AccountKey, BudgetChange, LevelReached, Reached, Use
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.events import Event, EventKind
from mptcp_throttled.vocabulary.operator import OperatorState, Override
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import Facts, Term, Terms, WallClock

ZONE: Final = ZoneInfo("Europe/Berlin")
NOW: Final = datetime(2026, 11, 26, 14, 32, tzinfo=ZONE).timestamp()
GIGABYTE: Final = 10**9
WINDOW: Final = "Mon..Fri 08:00-18:00"
NIGHT: Final = "01:00-06:00"
THIRD_PART: Final = {"lte": 1, "wifi": 2, "satellite": 3}

NO_CAP: Final = "network has no cap"
NO_PREFERRED: Final = "no live subflow on a more preferred network"
LIMITED: Final = "limit of the network"
PAUSED: Final = "paused by the operator"
"""Reasons of decisions, as in docs/howto/monitor.md."""

Json = Any


def at(day: int, hour: int, minute: int = 0, month: int = 11) -> float:
    """A moment of 2026, in the time zone of the proxy."""
    return datetime(2026, month, day, hour, minute, tzinfo=ZONE).timestamp()


def address(network: str, number: int) -> Address:
    """The address of a client in a network."""
    return ip_address(f"10.{THIRD_PART[network]}.{number >> 8}.{number & 255}")


_SLOW: Final = (Stage(1.0, {RateKind.CAP: Rate.parse("256kbit")}),)
OF_CLIENT: Final = Budget(GIGABYTE, Per.CLIENT, Counting.BOTH, Every.DAY, 0, 0.8, _SLOW)
OF_LTE: Final = Budget(50 * GIGABYTE, Per.NETWORK, Counting.BOTH, Every.MONTH, 15, 0.8, _SLOW)
BUS_11, BUS_14, BUS_31 = (address("lte", number) for number in (11, 14, 31))
BY_HAND: Final = Override("lte", RateKind.CAP, Rate.parse("5mbit"), at(26, 15, 5), BUS_11)

WIFI: Final = AccessNetwork("wifi", (ip_network("10.2.0.0/16"),), 1, {}, Per.CLIENT)
SATELLITE: Final = AccessNetwork(
    "satellite",
    (ip_network("10.3.0.0/16"),),
    2,
    {RateKind.LIMIT: Rate.parse("40mbit")},
    Per.NETWORK,
    healthy=Health(loss=0.02),
    schedule=(Window(When.parse("Sat..Sun 10:00-20:00"), {RateKind.LIMIT: Rate.parse("20mbit")}),),
)
LTE: Final = AccessNetwork(
    "lte",
    (ip_network("10.1.0.0/16"),),
    3,
    {RateKind.CAP: Rate.parse("1mbit")},
    Per.CLIENT,
    schedule=(
        Window(When.parse(WINDOW), {RateKind.CAP: Rate.parse("512kbit")}),
        Window(When.parse(NIGHT), {RateKind.CAP: None}, counts=False),
    ),
    budgets=(OF_CLIENT, OF_LTE),
    overflow=Rate.parse("10mbit"),
    devices=Devices(
        tuple(
            NamedClient(f"bus-{client & 255}", (ip_network(client),)) for client in map(int, (BUS_11, BUS_14, BUS_31))
        )
    ),
)
NETWORKS: Final = (WIFI, SATELLITE, LTE)
LOSS: Final = SATELLITE.healthy.broken(Ailment.LOSS)
SICK: Final = f"satellite is sick: {LOSS}"

_FACTS: Final = Facts(
    (BY_HAND,),
    WallClock(0.0, ZONE),
    {"lte": {BUS_14: (Reached(OF_CLIENT, 1, at(27, 0)),)}},
    {"lte": {BUS_31: Rate.parse("3.1mbit")}},
)
_SNAPSHOT: Final = Snapshot(networks=NETWORKS, facts=_FACTS)


def terms_of(network: AccessNetwork, client: Address | None) -> list[Terms]:
    """What each rule makes of the rates of a client, or of a network."""
    return steps(rule_input(network, client, NOW, _FACTS))


@cache
def _cap(client: Address | None) -> Term:
    return terms_of(LTE, client)[-1][RateKind.CAP]


def rates_of(network: AccessNetwork) -> Json:
    """The present rates of a network, as in the answer to `status`."""
    return describe_rates(network.rates, terms_of(network, None)[-1], Now(NOW, NOW))


def cap_steps(client: Address) -> list[Json]:
    """What each rule has made of the cap of a client of LTE, as in the answer to `explain`."""
    terms = [made[RateKind.CAP] for made in terms_of(LTE, client)]
    return [describe_term(term, Now(NOW, NOW)) for term in {term.rule: term for term in terms}.values()]


class Held(NamedTuple):
    """What holds a client on a network: a rate of a kind, why, and the term from which it is."""

    kind: str
    reason: str
    term: Term


def capped(number: int, preferred: str = WIFI.name) -> Held:
    """A client of LTE whose connections have a path in this network, too."""
    client = address("lte", number)
    term = _cap(client if client in {BUS_11, BUS_14, BUS_31} else None)
    return Held("cap", "; ".join(filter(None, (f"{preferred} is live", term.reason and f"cap: {term.reason}"))), term)


def limited() -> Held:
    """Any client of the satellite."""
    return Held("limit", LIMITED, terms_of(SATELLITE, None)[-1][RateKind.LIMIT])


class Happened(NamedTuple):
    """An event, when it was, and the name of the client."""

    at: float
    event: Event
    device: str | None = None


def happened() -> list[Happened]:
    """The events of a day, the latest first."""
    account = AccountKey("lte", OF_CLIENT.key)
    spent = LevelReached(account, OF_CLIENT, BUS_14, Use(1_004_000_000), 1)
    warned = LevelReached(account, OF_CLIENT, BUS_14, Use(802_000_000), 0)
    of_lte = LevelReached(AccountKey("lte", OF_LTE.key), OF_LTE, None, Use(40_100_000_000), 0)
    by_hand = Snapshot(networks=NETWORKS, facts=_FACTS, operator=OperatorState((BY_HAND,)))
    (was_set,) = set_by_hand(_SNAPSHOT, by_hand, at(26, 14, 5))
    networks = ", ".join(network.name for network in NETWORKS)
    return [
        Happened(at(26, 14, 5), was_set, "bus-11"),
        Happened(at(26, 13, 47), _of_budget(spent), "bus-14"),
        Happened(at(26, 13, 31), _of_budget(warned), "bus-14"),
        Happened(at(26, 11, 2), _of_budget(of_lte)),
        Happened(at(26, 9, 15), reloaded([Change("network satellite: limit", "60mbit", "40mbit")], [])),
        *_windows(),
        Happened(at(25, 21, 4), Event(EventKind.DAEMON_STARTED, f"throttling on eth0, networks {networks}")),
    ]


def _of_budget(change: BudgetChange) -> Event:
    (event,) = budget_events([change], _SNAPSHOT)
    return event


def _windows() -> list[Happened]:
    windows = WindowEvents()
    moments = at(26, 5), at(26, 6), at(26, 8)
    said = [(moment, windows.step(_SNAPSHOT, moment)) for moment in moments]
    return [Happened(moment, event) for moment, events in reversed(said[1:]) for event in events]
