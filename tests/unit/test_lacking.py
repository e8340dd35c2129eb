"""What preferred paths lack of an overflow: when a cap rises and falls, and which rule has the last word."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import pytest
from examples import ETHERNET, WIFI, cap, capped, client
from loops import snapshot_of

from mptcp_throttle.features import FeatureName
from mptcp_throttle.model import AccessNetwork, Budget, Counting, Every, Per, RateKind, Stage
from mptcp_throttle.units import Rate
from mptcp_throttled.observing.overflow import INTERVAL_SECONDS, Overflow
from mptcp_throttled.policy.terms import terms_of
from mptcp_throttled.vocabulary.budgets import Reached
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
    """A client with a capped subflow and one on Wi-Fi, of which a test says what they deliver."""

    snapshot: Snapshot
    overflow: Overflow = field(default_factory=Overflow)
    at: float = 1000.0
    sent: dict[str, int] = field(default_factory=lambda: {"ethernet": 0, "wifi": 0})

    def lacking(self, seconds: float, wifi: float, ethernet: float) -> float | None:
        """In Mb/s, after so many seconds with these rates in Mb/s."""
        (connection,) = self.snapshot.connections.values()
        for _ in range(round(seconds / INTERVAL_SECONDS)):
            self.at += INTERVAL_SECONDS
            for name, rate in (("ethernet", ethernet), ("wifi", wifi)):
                self.sent[name] += round(rate * 1e6 / 8 * INTERVAL_SECONDS)
            sockets = {
                subflow.ends: SocketState(0, None, SocketTotals(self.sent[name]), cookie=number)
                for number, (name, subflow) in enumerate(zip(("ethernet", "wifi"), connection.subflows, strict=True))
            }
            self.overflow.look(self.at, sockets, self.snapshot)
        lacking = self.overflow.lacking.get("ethernet", {}).get(CLIENT)
        return None if lacking is None else lacking.bits_per_second / 1e6


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    snapshot = snapshot_of(tmp_path, client(1))
    assert capped(1) in snapshot.throttled
    (connection,) = snapshot.connections.values()
    assert connection.subflows[0].ends == capped(1)
    steered: dict[str, FeatureState] = {**snapshot.features, FeatureName.STEERING: FeatureState()}
    return Watched(replace(snapshot, networks=(WIFI, WITH_OVERFLOW), features=steered))


def test_cap_rises_to_what_wifi_lacks_and_falls_when_it_recovers(watched: Watched) -> None:
    assert watched.lacking(5, wifi=56, ethernet=1) is None
    assert watched.lacking(1, wifi=3, ethernet=1) == pytest.approx(7, abs=1)
    assert watched.lacking(5, wifi=3, ethernet=7) == pytest.approx(7, abs=1)
    assert watched.lacking(0.75, wifi=56, ethernet=7) == pytest.approx(7, abs=1)
    assert watched.lacking(1.25, wifi=56, ethernet=7) is None


def test_slow_wifi_of_a_client_that_asks_for_no_more_lacks_nothing(watched: Watched) -> None:
    assert watched.lacking(10, wifi=2, ethernet=0) is None
    assert watched.lacking(1, wifi=2, ethernet=1) == pytest.approx(8, abs=1)
    assert watched.lacking(4, wifi=2, ethernet=0.1) is None


def test_pause_of_the_client_between_requests_raises_no_cap(watched: Watched) -> None:
    before = watched.lacking(3, wifi=7, ethernet=1)
    assert before == pytest.approx(3, abs=1)
    assert watched.lacking(1, wifi=0, ethernet=0) == before
    assert watched.lacking(1, wifi=1, ethernet=1) == pytest.approx(9, abs=1)


def test_small_differences_change_nothing(watched: Watched) -> None:
    before = watched.lacking(3, wifi=3, ethernet=5)
    assert [watched.lacking(1, wifi=rate, ethernet=5) for rate in (3.5, 2.7, 3.3)] == [before] * 3


def test_client_whose_subflows_have_ended_is_forgotten(watched: Watched) -> None:
    assert watched.lacking(2, wifi=3, ethernet=5) is not None
    watched.overflow.look(watched.at + 11, {}, Snapshot(networks=(WIFI, WITH_OVERFLOW)))
    assert watched.overflow.lacking == {}


def test_without_steering_no_cap_rises(watched: Watched) -> None:
    features: dict[str, FeatureState] = {FeatureName.STEERING: FeatureState("no such kernel")}
    watched.snapshot = replace(watched.snapshot, features=features)
    assert watched.lacking(5, wifi=1, ethernet=1) is None


def term(network: AccessNetwork, facts: Facts) -> Term:
    present = terms_of((WIFI, network), 0.0, facts)
    terms = present.by_client.get((network.name, CLIENT), present.by_network[network.name])
    return terms[RateKind.CAP]


LACKING: Final = {"ethernet": {CLIENT: Rate(7_000_000)}}


def test_client_has_what_its_paths_lack_up_to_the_limit() -> None:
    facts = Facts(lacking=LACKING)
    assert term(WITH_OVERFLOW, facts) == Term(Rate(7_000_000), REASON, None, RuleName.OVERFLOW)
    limited = WITH_OVERFLOW.with_rates({RateKind.LIMIT: Rate(4_000_000)})
    assert term(limited, facts).rate == Rate(4_000_000)
    low = WITH_OVERFLOW.with_rates({RateKind.LIMIT: CAP})
    assert term(low, facts).rate == CAP
    assert term(WITH_OVERFLOW, Facts(lacking={"ethernet": {CLIENT: CAP}})) == Term(CAP)


def test_spent_budget_narrows_an_overflow_and_a_rate_by_hand_replaces_it() -> None:
    stage = Stage(1.0, {RateKind.CAP: Rate(2_000_000)})
    budget = Budget(1000, Per.NETWORK, Counting.BOTH, Every.MONTH, 1, None, (stage,))
    spent = {"ethernet": {None: (Reached(budget, (stage,), None),)}}
    narrowed = term(WITH_OVERFLOW, Facts(lacking=LACKING, spent=spent))  # type: ignore[arg-type]
    assert (narrowed.rate, narrowed.rule) == (Rate(2_000_000), RuleName.BUDGET)
    by_hand = term(WITH_OVERFLOW, Facts((cap("ethernet", Rate(3_000_000)),), lacking=LACKING))
    assert (by_hand.rate, by_hand.rule) == (Rate(3_000_000), RuleName.BY_HAND)


def test_what_is_not_known_any_more_raises_no_cap(watched: Watched) -> None:
    watched.lacking(2, wifi=3, ethernet=5)
    assert watched.overflow.lacking_at(watched.at + 1) == watched.overflow.lacking
    assert watched.overflow.lacking_at(watched.at + 10) == {}


def test_cap_of_a_window_is_what_must_be_used(watched: Watched) -> None:
    terms = watched.snapshot.terms
    low = {**terms.by_network, "ethernet": {RateKind.CAP: Term(Rate(512_000), "schedule")}}
    watched.snapshot = replace(watched.snapshot, terms=replace(terms, by_network=low))
    assert watched.lacking(2, wifi=3, ethernet=0.5) == pytest.approx(7, abs=1)
