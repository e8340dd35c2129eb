"""Rates that several proxies share: what this proxy makes of its part, and what it tells the others of demand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import pytest
from examples import WIFI, cap, capped, client, connection, network, subflow
from loops import LoopOnModels

from mptcp_throttle.model import Direction, FourTuple, RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.observing.shared_demand import INTERVAL_SECONDS, SharedDemand
from mptcp_throttled.policy.terms import terms_of
from mptcp_throttled.vocabulary.fleet import WHOLE, RateKey, SharedRates
from mptcp_throttled.vocabulary.observation import SocketState
from mptcp_throttled.vocabulary.operator import Override
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import Facts, RuleName
from mptcp_throttled.vocabulary.traffic import SocketTotals

SHARED: Final = replace(network("ethernet", 1, 2, cap="10mbit", limit="20mbit"), shared=True)
CLIENT: Final = ip_address("10.1.0.1")
KEY: Final = RateKey("ethernet", CLIENT, Direction.DOWNLINK)
FLOOR: Final = WHOLE // 100
LEASED: Final = SharedRates(3, False, FLOOR, 0, {KEY: WHOLE // 2})
AWAY: Final = SharedRates(3, True, FLOOR, WHOLE * 3 // 10)


def test_client_without_a_lease_has_the_floor_of_each_rate() -> None:
    terms = terms_of([SHARED], 0.0, Facts(shared=SharedRates(3, False, FLOOR)))
    assert terms.rates["ethernet"] == {RateKind.CAP: Rate(100_000), RateKind.LIMIT: Rate(200_000)}
    assert terms.by_client == {}
    term = terms.by_network["ethernet"][RateKind.CAP]
    assert (term.rule, term.reason) == (RuleName.FLEET, "10mbit over 3 proxies")


def test_lease_is_added_to_the_base_of_each_rate_of_its_direction() -> None:
    both = replace(SHARED, rates={**SHARED.rates, RateKind.UPLINK_CAP: Rate(1_000_000)})
    terms = terms_of([both], 0.0, Facts(shared=LEASED))
    assert terms.client_rates["ethernet", CLIENT] == {
        RateKind.CAP: Rate(5_100_000),
        RateKind.LIMIT: Rate(10_200_000),
    }
    assert terms.rates["ethernet"][RateKind.UPLINK_CAP] == Rate(10_000)


def test_proxies_out_of_reach_leave_each_client_a_part() -> None:
    terms = terms_of([SHARED], 0.0, Facts(shared=AWAY))
    assert terms.rates["ethernet"][RateKind.CAP] == Rate(3_100_000)
    assert terms.by_network["ethernet"][RateKind.CAP].reason == "10mbit over 3 proxies, which are out of reach"


def test_network_that_is_not_shared_keeps_its_rates() -> None:
    alone = replace(SHARED, shared=False)
    assert terms_of([alone], 0.0, Facts(shared=LEASED)) == terms_of([alone], 0.0, Facts())
    assert terms_of([SHARED], 0.0, Facts()) == terms_of([alone], 0.0, Facts())


def test_proxy_that_knows_no_other_has_the_whole_rate() -> None:
    terms = terms_of([SHARED], 0.0, Facts(shared=SharedRates(1, True, WHOLE)))
    assert terms == terms_of([SHARED], 0.0, Facts())


def test_rate_by_hand_is_shared_as_any_other() -> None:
    overrides = cap("ethernet", Rate(4_000_000)), Override("ethernet", RateKind.CAP, Rate(8_000_000), None, CLIENT)
    terms = terms_of([SHARED], 0.0, Facts(overrides, shared=LEASED))
    assert terms.rates["ethernet"][RateKind.CAP] == Rate(40_000)
    assert terms.client_rates["ethernet", CLIENT][RateKind.CAP] == Rate(4_080_000)
    reason = terms.by_client["ethernet", CLIENT][RateKind.CAP].reason
    assert reason == "by hand for this client, until reset; 8mbit over 3 proxies"


def test_rate_has_no_part_below_the_lowest_that_there_is() -> None:
    slow = replace(network("ethernet", 1, 2, cap="8kbit"), shared=True)
    assert terms_of([slow], 0.0, Facts(shared=LEASED._replace(leased={}))).rates["ethernet"] == {
        RateKind.CAP: Rate(1000)
    }


def test_lease_changes_the_class_of_the_client_and_of_no_other(tmp_path: Path) -> None:
    running = LoopOnModels(tmp_path, (WIFI, SHARED), shared=SharedRates(3, False, FLOOR))
    before = running.show(client(1), client(2))
    assert {before.throttled[capped(number)].throttle.rate for number in (1, 2)} == {Rate(100_000)}
    running.shared = LEASED
    running.loop.step()
    after = running.loop.snapshot
    assert after.throttled[capped(1)].throttle.rate == Rate(5_100_000)
    assert after.throttled[capped(2)] is before.throttled[capped(2)]
    assert "10mbit over 3 proxies" in after.reason(Direction.DOWNLINK, after.throttled[capped(1)].decision)


def test_lease_that_changes_again_decides_nothing_again(tmp_path: Path) -> None:
    running = LoopOnModels(tmp_path, (WIFI, SHARED), shared=LEASED)
    before = running.show(client(1))
    running.shared = LEASED._replace(leased={KEY: WHOLE // 4})
    running.loop.step()
    after = running.loop.snapshot
    assert after.throttled[capped(1)].throttle.rate == Rate(2_600_000)
    (old,), (new,) = ([*each.decisions.values()] for each in (before, after))
    assert old == new


def test_addresses_of_one_client_share_its_lease(tmp_path: Path) -> None:
    running = LoopOnModels(tmp_path, (WIFI, SHARED), shared=LEASED)
    snapshot = running.show(connection(1, subflow("10.1.0.1"), subflow("10.1.0.9"), subflow("10.2.0.1")))
    assert {each.throttle.share for each in snapshot.throttled.values()} == {
        next(iter(snapshot.throttled.values())).throttle.share
    }


@dataclass
class Watched:
    """A client with one subflow of a shared cap, of which a test says what it carries."""

    snapshot: Snapshot
    demand: SharedDemand = field(default_factory=SharedDemand)
    at: float = 1000.0
    sent: int = 0

    def wanted(self, seconds: float, rate: float) -> float:
        """The fraction of the rate that is wanted after `seconds` at a `rate` in bits/s."""
        wanted = 0
        for _ in range(round(seconds / INTERVAL_SECONDS)):
            self.at += INTERVAL_SECONDS
            self.sent += int(rate * INTERVAL_SECONDS / 8)
            sockets: dict[FourTuple, SocketState] = {
                capped(1): SocketState(0, None, SocketTotals(sent=self.sent), cookie=7)
            }
            wanted = self.demand.observe(self.at, sockets, self.snapshot).get(KEY, 0)
        return wanted / WHOLE


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(LoopOnModels(tmp_path, (WIFI, SHARED), shared=LEASED).show(client(1)))


def test_client_that_uses_its_rate_wants_the_whole(watched: Watched) -> None:
    assert watched.wanted(1.0, 4_900_000) == 1


def test_client_that_carries_less_wants_a_little_more_than_that(watched: Watched) -> None:
    assert watched.wanted(5.0, 1_000_000) == 5 / 32


def test_demand_falls_only_after_some_seconds(watched: Watched) -> None:
    assert watched.wanted(2.0, 4_900_000) == 1
    assert watched.wanted(2.0, 0) == 1
    assert watched.wanted(10.0, 0) == 0


def test_client_that_carries_nothing_wants_nothing(watched: Watched) -> None:
    assert watched.wanted(3.0, 0) == 0


def test_proxy_alone_tells_of_no_demand(tmp_path: Path) -> None:
    watched = Watched(LoopOnModels(tmp_path, (WIFI, SHARED)).show(client(1)))
    assert watched.wanted(3.0, 10_000_000) == 0
