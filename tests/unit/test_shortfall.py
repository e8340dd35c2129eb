"""What preferred paths lack of an overflow: when a cap rises and falls, and which rule has the last word."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

import pytest
from examples import ETHERNET, WIFI, cap, capped, client, connection, subflow
from loops import LoopOnModels, snapshot_of

from mptcp_throttle.features import FeatureName
from mptcp_throttle.model import (
    AccessNetwork,
    Budget,
    Counting,
    Devices,
    Every,
    FourTuple,
    NamedClient,
    Per,
    RateKind,
    Stage,
)
from mptcp_throttle.units import Rate
from mptcp_throttled.observing.overflow import Overflow
from mptcp_throttled.policy.decisions import DecisionTable
from mptcp_throttled.policy.shortfall import INTERVAL_SECONDS
from mptcp_throttled.policy.terms import terms_of
from mptcp_throttled.vocabulary.budgets import Reached
from mptcp_throttled.vocabulary.decision import Share
from mptcp_throttled.vocabulary.features import FeatureState
from mptcp_throttled.vocabulary.observation import SocketState
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import Facts, RuleName, Term
from mptcp_throttled.vocabulary.traffic import SocketTotals

CLIENT: Final = ip_address("10.1.0.1")
CAP: Final = ETHERNET.rates[RateKind.CAP]
WITH_OVERFLOW: Final = replace(ETHERNET, overflow=Rate(10_000_000))
REASON: Final = "overflow: preferred paths carry less than 10mbit"


@dataclass
class Watched:
    """A client with capped subflows and others on Wi-Fi, of which a test says what each delivers."""

    snapshot: Snapshot
    overflow: Overflow = field(default_factory=Overflow)
    at: float = 1000.0
    sent: dict[FourTuple, int] = field(default_factory=dict)

    def shortfall(self, seconds: float, wifi: float, ethernet: float, unsent: int = 32 << 10) -> float | None:
        """In Mb/s, after `seconds` with these rates in Mb/s, and with `unsent` bytes of Wi-Fi not sent yet."""
        subflows = [each for connection in self.snapshot.connections.values() for each in connection.subflows]
        named = [("wifi" if each.ends.client.address in WIFI.subnets[0] else "ethernet", each) for each in subflows]
        self.sent = self.sent or dict.fromkeys((each.ends for each in subflows), 0)
        for _ in range(round(seconds / INTERVAL_SECONDS)):
            self.at += INTERVAL_SECONDS
            for name, each in named:
                rate = wifi if name == "wifi" else ethernet
                self.sent[each.ends] += round(rate * 1e6 / 8 * INTERVAL_SECONDS)
            sockets = {
                ends: SocketState(0, None, SocketTotals(sent), cookie=number, unsent=unsent)
                for number, (ends, sent) in enumerate(self.sent.items())
            }
            self.overflow.observe(self.at, sockets, self.snapshot)
        shortfall = self.overflow.shortfalls.get("ethernet", {}).get(CLIENT)
        return None if shortfall is None else shortfall.bits_per_second / 1e6


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    snapshot = snapshot_of(tmp_path, client(1))
    assert capped(1) in snapshot.throttled
    return Watched(with_steering(snapshot))


def with_steering(snapshot: Snapshot) -> Snapshot:
    """The snapshot with an overflow of Ethernet, and with steering in place."""
    steered: dict[str, FeatureState] = {**snapshot.features, FeatureName.STEERING: FeatureState()}
    return replace(snapshot, networks=(WIFI, WITH_OVERFLOW), features=steered)


def test_cap_rises_to_what_wifi_lacks_and_falls_when_it_recovers(watched: Watched) -> None:
    assert watched.shortfall(5, wifi=56, ethernet=1) is None
    assert watched.shortfall(1, wifi=3, ethernet=1) == pytest.approx(7, abs=1)
    assert watched.shortfall(5, wifi=3, ethernet=7) == pytest.approx(7, abs=1)
    assert watched.shortfall(0.75, wifi=56, ethernet=7) == pytest.approx(7, abs=1)
    assert watched.shortfall(1.25, wifi=56, ethernet=7) is None


def test_slow_wifi_of_a_client_that_asks_for_no_more_lacks_nothing(watched: Watched) -> None:
    assert watched.shortfall(10, wifi=2, ethernet=0) is None
    assert watched.shortfall(1, wifi=2, ethernet=1) == pytest.approx(8, abs=1)
    assert watched.shortfall(4, wifi=2, ethernet=0.1) is None


def test_pause_of_the_client_between_requests_raises_no_cap(watched: Watched) -> None:
    before = watched.shortfall(3, wifi=7, ethernet=1)
    assert before == pytest.approx(3, abs=1)
    assert watched.shortfall(1, wifi=0, ethernet=0) == before
    assert watched.shortfall(1, wifi=1, ethernet=1) == pytest.approx(9, abs=1)


def test_one_pulse_raises_no_cap(watched: Watched) -> None:
    for _ in range(10):
        assert watched.shortfall(0.25, wifi=2, ethernet=4) is None
        assert watched.shortfall(0.75, wifi=2, ethernet=0.2) is None


def test_client_whose_window_is_what_is_slow_gets_no_more(watched: Watched) -> None:
    for unsent in (0, 8000, 8000, 0, 34000, 0, 7000, 0) * 3:
        assert watched.shortfall(0.25, wifi=8, ethernet=1, unsent=unsent) is None
    assert watched.shortfall(1, wifi=8, ethernet=1) == pytest.approx(2, abs=0.1)
    assert watched.shortfall(4, wifi=8, ethernet=2, unsent=4000) is None


def test_device_with_a_lower_cap_asks_for_more_by_carrying_that(watched: Watched) -> None:
    phone = NamedClient("phone", (ip_network(f"{CLIENT}/32"),), {RateKind.CAP: Rate(400_000)})
    network = replace(WITH_OVERFLOW, devices=Devices((phone,)))
    watched.snapshot = replace(watched.snapshot, networks=(WIFI, network))
    assert watched.shortfall(2, wifi=3, ethernet=0.4) == pytest.approx(7, abs=1)


def test_small_differences_change_nothing(watched: Watched) -> None:
    before = watched.shortfall(3, wifi=3, ethernet=5)
    assert [watched.shortfall(1, wifi=rate, ethernet=5) for rate in (3.5, 2.7, 3.3)] == [before] * 3


def test_client_whose_subflows_have_ended_is_forgotten(watched: Watched) -> None:
    assert watched.shortfall(2, wifi=3, ethernet=5) is not None
    watched.overflow.observe(watched.at + 11, {}, Snapshot(networks=(WIFI, WITH_OVERFLOW)))
    assert watched.overflow.shortfalls == {}


def test_without_steering_no_cap_rises(watched: Watched) -> None:
    features: dict[str, FeatureState] = {FeatureName.STEERING: FeatureState("no such kernel")}
    watched.snapshot = replace(watched.snapshot, features=features)
    assert watched.shortfall(5, wifi=1, ethernet=1) is None


def test_addresses_of_one_client_are_judged_and_capped_together(tmp_path: Path) -> None:
    networks = WIFI, WITH_OVERFLOW
    first, second = subflow("10.1.0.1"), subflow("10.1.0.9")
    joined = connection(1, first, second, subflow("10.2.0.1"))
    running = LoopOnModels(tmp_path, networks)
    snapshot = running.show(joined, connection(2, subflow("10.1.0.9", 40001), subflow("10.2.0.1", 40001)))
    watched = Watched(replace(snapshot, features={FeatureName.STEERING: FeatureState()}))
    assert watched.shortfall(2, wifi=1.5, ethernet=0.4) is not None
    assert list(watched.overflow.shortfalls["ethernet"]) == [CLIENT]
    table = DecisionTable()
    table.reconfigure(networks, terms_of(networks, 0.0, Facts()), paused=False)
    table.update(snapshot.connections)
    table.reconfigure(networks, terms_of(networks, 0.0, Facts(shortfalls=watched.overflow.shortfalls)), paused=False)
    shares = {d.downlink.share for each in table.decisions.values() for d in each if d.network == "ethernet"}
    assert shares == {Share("ethernet", RateKind.CAP, "10.1.0.1", CLIENT)}


def term(network: AccessNetwork, facts: Facts) -> Term:
    present = terms_of((WIFI, network), 0.0, facts)
    terms = present.by_client.get((network.name, CLIENT), present.by_network[network.name])
    return terms[RateKind.CAP]


SHORTFALLS: Final = {"ethernet": {CLIENT: Rate(7_000_000)}}


def test_client_has_what_its_paths_lack_up_to_the_limit() -> None:
    facts = Facts(shortfalls=SHORTFALLS)
    assert term(WITH_OVERFLOW, facts) == Term(Rate(7_000_000), REASON, None, RuleName.OVERFLOW)
    limited = WITH_OVERFLOW.with_rates({RateKind.LIMIT: Rate(4_000_000)})
    assert term(limited, facts).rate == Rate(4_000_000)
    low = WITH_OVERFLOW.with_rates({RateKind.LIMIT: CAP})
    assert term(low, facts).rate == CAP
    assert term(WITH_OVERFLOW, Facts(shortfalls={"ethernet": {CLIENT: CAP}})) == Term(CAP)


def test_spent_budget_narrows_an_overflow_and_a_rate_by_hand_replaces_it() -> None:
    stage = Stage(1.0, {RateKind.CAP: Rate(2_000_000)})
    budget = Budget(1000, Per.NETWORK, Counting.BOTH, Every.MONTH, 1, None, (stage,))
    spent = {"ethernet": {None: (Reached(budget, 1, None),)}}
    narrowed = term(WITH_OVERFLOW, Facts(shortfalls=SHORTFALLS, spent=spent))  # type: ignore[arg-type]
    assert (narrowed.rate, narrowed.rule) == (Rate(2_000_000), RuleName.BUDGET)
    by_hand = term(WITH_OVERFLOW, Facts((cap("ethernet", Rate(3_000_000)),), shortfalls=SHORTFALLS))
    assert (by_hand.rate, by_hand.rule) == (Rate(3_000_000), RuleName.BY_HAND)


def test_what_is_not_known_any_more_raises_no_cap(watched: Watched) -> None:
    watched.shortfall(2, wifi=3, ethernet=5)
    assert watched.overflow.shortfalls_at(watched.at + 1) == watched.overflow.shortfalls
    assert watched.overflow.shortfalls_at(watched.at + 10) == {}


def test_cap_of_a_window_is_what_must_be_used(watched: Watched) -> None:
    terms = watched.snapshot.terms
    low = {**terms.by_network, "ethernet": {RateKind.CAP: Term(Rate(512_000), "schedule")}}
    watched.snapshot = replace(watched.snapshot, terms=replace(terms, by_network=low))
    assert watched.shortfall(2, wifi=3, ethernet=0.5) == pytest.approx(7, abs=1)


def test_thousands_of_clients_that_ask_for_nothing_are_not_followed(tmp_path: Path) -> None:
    watched = Watched(with_steering(snapshot_of(tmp_path, *(client(number) for number in range(1, 50)))))
    assert watched.shortfall(5, wifi=1, ethernet=0) is None
    assert watched.overflow.followed == 0
    assert watched.shortfall(2, wifi=1, ethernet=1) == pytest.approx(9, abs=1)
    assert watched.overflow.followed == 49
    assert watched.shortfall(10, wifi=56, ethernet=0) is None
    assert watched.overflow.followed == 0
