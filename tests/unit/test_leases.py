"""One rate over several proxies: what all hold is within the rate whatever fails, and follows demand."""

from __future__ import annotations

from typing import Final

import pytest
from fleet_model import KEYS, WHOLE, Fleet, Proxy
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from mptcp_throttled.fleet.division import divided
from mptcp_throttled.fleet.leases import Statement, floor, pool
from mptcp_throttled.fleet.members import (
    AWAY_SECONDS,
    FORGET_SECONDS,
    LEASE_SECONDS,
    OVERSTAY_SECONDS,
    PARTS,
    Phase,
    Record,
)

KEY: Final = KEYS[0]
JOINED_SECONDS: Final = 60.0
LONGEST_OUT: Final = 200.0
"""A proxy that is out of contact for longer keeps its part, whatever the others do."""


def joined(size: int, seed: int = 1) -> Fleet:
    """A fleet whose proxies all have a part."""
    fleet = Fleet(size, seed)
    fleet.advance(JOINED_SECONDS)
    assert all(proxy.members.part for proxy in fleet.proxies.values())
    return fleet


def held(fleet: Fleet) -> list[int]:
    return [proxy.held(KEY) for proxy in fleet.proxies.values()]


def want(fleet: Fleet, *wanted: int) -> None:
    for proxy, much in zip(fleet.proxies.values(), wanted, strict=False):
        proxy.wanted[KEY] = much


def floor_of(fleet: Fleet, proxy: Proxy) -> int:
    return floor(WHOLE, proxy.members.standing(proxy.offset + proxy.speed * fleet.now))


class FailingFleet(RuleBasedStateMachine):
    """`Fleet` asserts after each change of a kernel that the sum of what proxies hold is within the rate."""

    @initialize(size=st.sampled_from((2, 2, 3, 3, 4, 5, 8)), seed=st.integers(0, 2**32))
    def begin(self, size: int, seed: int) -> None:
        self.fleet = joined(size, seed)

    def proxy(self, index: int) -> Proxy:
        proxies = list(self.fleet.proxies.values())
        return proxies[index % len(proxies)]

    def pass_time(self, seconds: float) -> None:
        self.fleet.advance(seconds)
        for proxy in self.fleet.proxies.values():
            if self.fleet.now - proxy.answered_at > LONGEST_OUT:
                proxy.is_partitioned, proxy.slowest = False, 0.02

    indices = st.integers(0, 7)
    pauses = st.sampled_from((0.0, 0.1, 0.3, 1.0, 2.0, 5.0, 10.0, 30.0))

    @rule(
        index=indices,
        key=st.sampled_from(KEYS),
        wanted=st.sampled_from((0, WHOLE // 20, WHOLE // 3, WHOLE)),
        then=pauses,
    )
    def demand(self, index: int, key: str, wanted: int, then: float) -> None:
        self.proxy(index).wanted[key] = wanted
        self.pass_time(then)

    @rule(index=indices, then=pauses)
    def partition(self, index: int, then: float) -> None:
        self.proxy(index).is_partitioned = True
        self.pass_time(then)

    @rule(index=indices, then=pauses)
    def heal(self, index: int, then: float) -> None:
        self.proxy(index).is_partitioned = False
        self.pass_time(then)

    @rule(index=indices, slowest=st.sampled_from((0.02, 0.02, 0.5, 2.0, 5.0, 8.0)), then=pauses)
    def delay(self, index: int, slowest: float, then: float) -> None:
        self.proxy(index).slowest = slowest
        self.pass_time(then)

    @rule(index=indices, host=st.booleans(), then=pauses)
    def crash(self, index: int, host: bool, then: float) -> None:
        self.fleet.crash(self.proxy(index), host=host)
        self.pass_time(then)

    @rule(index=indices, then=pauses)
    def hand_over(self, index: int, then: float) -> None:
        self.fleet.hand_over(self.proxy(index))
        self.pass_time(then)

    @rule(restarted=st.booleans(), then=pauses)
    def wipe(self, restarted: bool, then: float) -> None:
        self.fleet.wipe(restarted=restarted)
        self.pass_time(then)

    @rule(then=pauses)
    def fail_over(self, then: float) -> None:
        self.fleet.fail_over()
        self.pass_time(then)

    @rule(seconds=st.sampled_from((1.0, 5.0, 9.0, 30.0, 60.0)), then=pauses)
    def stall(self, seconds: float, then: float) -> None:
        self.fleet.stall(seconds)
        self.pass_time(then)

    @rule(name=st.sampled_from(("compromised-1", "compromised-2")), talks=st.booleans(), then=pauses)
    def compromise(self, name: str, talks: bool, then: float) -> None:
        self.fleet.compromise(name, talks=talks)
        self.pass_time(then)

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            self.fleet.advance(2 * AWAY_SECONDS)


def test_fleet_stays_within_the_rate_whatever_fails() -> None:
    checks = [HealthCheck.too_slow]
    often = settings(max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=checks)
    run_state_machine_as_test(FailingFleet, settings=often)


def test_fleet_of_fifty_joins_and_shares_within_the_rate() -> None:
    fleet = Fleet(50, 1)
    for proxy in fleet.proxies.values():
        proxy.wanted[KEY] = WHOLE
    fleet.advance(JOINED_SECONDS)
    assert max(held(fleet)) - min(held(fleet)) <= 2
    assert sum(held(fleet)) >= pool(WHOLE)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_lease_follows_demand_within_seconds(size: int) -> None:
    fleet = joined(size)
    want(fleet, WHOLE)
    fleet.advance(4.0)
    assert held(fleet)[0] >= pool(WHOLE)
    want(fleet, WHOLE, WHOLE)
    fleet.advance(8.0)
    assert held(fleet)[:2] == [pool(WHOLE) // 2 + floor_of(fleet, proxy) for proxy in list(fleet.proxies.values())[:2]]
    want(fleet, 0, WHOLE)
    fleet.advance(8.0)
    assert held(fleet)[1] >= pool(WHOLE)


def test_lease_is_what_a_max_min_fair_division_gives() -> None:
    fleet = joined(4)
    wanted = {"proxy-0": WHOLE // 20, "proxy-1": WHOLE // 5, "proxy-2": WHOLE, "proxy-3": WHOLE}
    want(fleet, *wanted.values())
    fleet.advance(10.0)
    shares = divided(pool(WHOLE), wanted)
    assert shares["proxy-0"] == wanted["proxy-0"]
    assert held(fleet) == [shares[name] + floor_of(fleet, proxy) for name, proxy in fleet.proxies.items()]


def test_floor_is_held_at_once_and_whatever_others_hold() -> None:
    fleet = joined(3)
    want(fleet, WHOLE, WHOLE)
    for _ in range(60):
        fleet.advance(0.5)
        assert all(proxy.held(KEY) >= floor_of(fleet, proxy) == WHOLE // 96 for proxy in fleet.proxies.values())


def test_server_that_is_away_leaves_leases_then_parts_of_the_rate() -> None:
    fleet = joined(2)
    want(fleet, WHOLE, WHOLE // 10)
    fleet.advance(10.0)
    large, small = held(fleet)
    part = pool(WHOLE) // 2 + WHOLE // 64
    assert small < part < large
    fleet.stall(1000.0)
    fleet.advance(LEASE_SECONDS - 3.0)
    assert held(fleet) == [large, small]
    fleet.advance(6.0)
    assert held(fleet) == [part, small]
    fleet.advance(AWAY_SECONDS)
    assert held(fleet) == [part, part]


def test_server_that_comes_back_gives_leases_again() -> None:
    fleet = joined(2)
    want(fleet, WHOLE)
    fleet.stall(120.0)
    fleet.advance(120.0)
    assert held(fleet) == [pool(WHOLE) // 2 + WHOLE // 64] * 2
    fleet.advance(30.0)
    assert held(fleet)[0] >= pool(WHOLE)


def test_server_that_loses_all_changes_no_rate() -> None:
    fleet = joined(3)
    want(fleet, WHOLE, WHOLE)
    fleet.advance(10.0)
    before = held(fleet)
    fleet.wipe(restarted=True)
    for _ in range(60):
        fleet.advance(0.5)
        assert held(fleet) == before


def test_part_is_kept_for_a_proxy_out_of_contact_until_it_is_forgotten() -> None:
    fleet = joined(2)
    want(fleet, WHOLE)
    list(fleet.proxies.values())[1].is_partitioned = True
    fleet.advance(60.0)
    assert held(fleet) == [pool(WHOLE) // 2 + WHOLE // 64] * 2
    fleet.crash(list(fleet.proxies.values())[1], host=True)
    fleet.remove("proxy-1")
    fleet.advance(FORGET_SECONDS)
    assert held(fleet)[0] >= pool(WHOLE)


def test_restarted_proxy_has_its_floor_at_once_and_its_lease_soon() -> None:
    fleet = joined(2)
    want(fleet, WHOLE)
    fleet.advance(10.0)
    first = next(iter(fleet.proxies.values()))
    fleet.crash(first, host=False)
    fleet.advance(3.0)
    assert held(fleet)[0] == WHOLE // 64
    fleet.advance(20.0)
    assert held(fleet)[0] >= pool(WHOLE)


def test_next_instance_holds_what_the_earlier_one_did() -> None:
    fleet = joined(3)
    want(fleet, WHOLE, WHOLE)
    fleet.advance(10.0)
    before = held(fleet)
    fleet.hand_over(next(iter(fleet.proxies.values())))
    for _ in range(60):
        fleet.advance(0.5)
        assert held(fleet) == before


@pytest.mark.parametrize("talks", [True, False])
def test_compromised_proxy_takes_no_more_than_an_equal_share(talks: bool) -> None:
    for seed in range(8):
        fleet = joined(2, seed)
        fleet.compromise("compromised", talks=talks)
        fleet.advance(5.0)
        want(fleet, WHOLE, WHOLE)
        fleet.advance(2 * OVERSTAY_SECONDS)
        assert min(held(fleet)) >= pool(WHOLE) // 3


def test_phase_without_any_contact_is_away_in_the_end() -> None:
    fleet = Fleet(1, 1)
    (proxy,) = fleet.proxies.values()
    proxy.is_partitioned = True
    fleet.advance(AWAY_SECONDS + 2.0)
    standing = proxy.members.standing(proxy.offset + proxy.speed * fleet.now)
    assert (standing.phase, standing.part, standing.size) == (Phase.AWAY, 0, 1)


@pytest.mark.parametrize("text", ["", "0123456789abcdef 1", "x" * 99, "0123456789abcdef -1 2", "0123456789abcdef 1 NaN",
    "0123456789abcdef 1 1e9", "0123456789ABCDEF 1 2", "0123456789abcdef 1 2 3", "0123456789abcdef 1 " + "9" * 30,
    "0123456789abcdef 1 ٣", "0123456789abcdef 1 2\n"])  # fmt: skip
def test_value_that_no_proxy_has_written_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: "):
        Record.parse(text)
    if text != "0123456789abcdef 1 2":
        with pytest.raises(ValueError, match="allowed: "):
            Statement.parse(text)


def test_value_is_read_as_it_was_written() -> None:
    record, statement = Record(7, 12, PARTS), Statement(2**64 - 1, 10**14, 0)
    assert Record.parse(str(record)) == record
    assert Statement.parse(str(statement)) == statement
    with pytest.raises(ValueError, match="a part up to"):
        Record.parse(str(record._replace(part=PARTS + 1)))
