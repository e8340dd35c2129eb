"""Rates of one client: they replace its network's, and the client has a share of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import pytest
from examples import ETHERNET, WIFI, cap, client, connection, network, subflow
from hypothesis import given
from hypothesis import strategies as st
from loops import LoopOnModels
from policy_oracle import decision_table

from mptcp_throttle.model import AccessNetwork, Address, Direction, Per, RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.answers.metrics.families import _rate_families
from mptcp_throttled.control.source import Haste, haste
from mptcp_throttled.policy.decisions import DecisionTable
from mptcp_throttled.policy.terms import terms_of
from mptcp_throttled.vocabulary.decision import Decision, Share
from mptcp_throttled.vocabulary.operator import Override
from mptcp_throttled.vocabulary.terms import Facts, PresentTerms, RuleName, Term

FIVE: Final = Rate.parse("5mbit")
LIMITED: Final = network("lte", 4, 2, cap="1mbit", limit="8mbit").with_rates(
    {RateKind.UPLINK_CAP: Rate.parse("250kbit")}
)
NETWORKS: Final = (WIFI, ETHERNET, LIMITED)
BY_HAND: Final = "by hand for this client"


def of_client(address: str, rate: Rate | None, end: float | None = None, kind: RateKind = RateKind.CAP) -> Override:
    return Override("ethernet", kind, rate, end, ip_address(address))


def present(*overrides: Override, now: float = 0.0, networks: Iterable[AccessNetwork] = NETWORKS) -> PresentTerms:
    return terms_of(networks, now, Facts(overrides))


def test_client_without_rates_of_its_own_has_those_of_its_network() -> None:
    assert present(cap("ethernet", FIVE)).by_client == {}


def test_client_has_both_kinds_of_the_direction_that_differs() -> None:
    override = Override("lte", RateKind.CAP, FIVE, 60.0, ip_address("10.4.0.2"))
    terms = present(override)
    assert terms.by_client == {
        ("lte", ip_address("10.4.0.2")): {
            RateKind.CAP: Term(FIVE, BY_HAND, 60.0, RuleName.BY_HAND),
            RateKind.LIMIT: Term(LIMITED.rates[RateKind.LIMIT]),
        }
    }
    assert (terms.next_change, terms.by_network) == (60.0, present().by_network)
    assert present(override, now=60.0) == present()


def test_client_has_a_rate_of_its_own_even_if_the_network_has_the_same() -> None:
    terms = present(cap("ethernet", FIVE), of_client("10.1.0.2", FIVE))
    assert [*terms.by_client] == [("ethernet", ip_address("10.1.0.2"))]


RATES: Final = st.one_of(st.none(), st.integers(1, 9).map(lambda number: Rate(number * 500_000)))
ADDRESSES: Final = [None, *map(ip_address, ("10.1.0.2", "10.1.0.3", "fd00:1::2", "fd00:1::3", "10.4.0.2"))]
OVERRIDES: Final = st.lists(
    st.builds(
        Override,
        st.sampled_from(["ethernet", "lte"]),
        st.sampled_from(RateKind),
        RATES,
        st.sampled_from([None, 10.0, 20.0]),
        st.sampled_from(ADDRESSES),
    ),
    unique_by=lambda override: (override.network, override.kind, first(override)),
    max_size=12,
)


def first(override: Override) -> Address | None:
    return None if override.client is None else ETHERNET.client_prefix.first(override.client)


@given(OVERRIDES, st.sampled_from([0.0, 10.0, 15.0, 20.0]))
def test_rate_is_the_clients_by_hand_else_the_networks_else_configured(overrides: list[Override], now: float) -> None:
    terms = present(*overrides, now=now)
    lasting = [override for override in overrides if override.end is None or override.end > now]
    for known in NETWORKS:
        for address in map(ip_address, ("10.1.0.2", "10.1.0.4", "fd00:1::", "10.4.0.2")):
            own = terms.by_client.get((known.name, address), {})
            for kind in RateKind:
                fitting = [o for o in lasting if (o.network, o.kind) == (known.name, kind)]
                of_this, of_all = ([o.rate for o in fitting if first(o) == whose] for whose in (address, None))
                expected, *_ = *of_this, *of_all, known.rates.get(kind)
                term = own.get(kind) or terms.by_network[known.name].get(kind, Term(None))
                assert term.rate == expected
                assert not of_this or kind in own
    ends = [override.end for override in lasting if override.end is not None]
    assert terms.next_change == min(ends, default=None)


CONNECTIONS: Final = {
    each.token: each
    for each in (
        connection(1, subflow("10.1.0.2"), subflow("10.2.0.2")),
        connection(2, subflow("10.1.0.3"), subflow("10.4.0.2"), subflow("10.2.0.3")),
        connection(3, subflow("10.1.0.2", 41000), subflow("fd00:1::2"), subflow("10.2.0.4")),
        connection(4, subflow("fd00:1::3"), subflow("10.4.0.2", 41000)),
        connection(5, subflow("10.1.0.3", 41000, backup=True), subflow("10.2.0.5")),
    )
}


@given(st.lists(OVERRIDES, max_size=4), st.sampled_from(Per))
def test_decisions_follow_the_rates_of_clients(changes: list[list[Override]], per: Per) -> None:
    networks = tuple(replace(each, per=per) for each in NETWORKS)
    table = decision_table(networks)
    table.update(CONNECTIONS)
    for overrides in changes:
        before, terms = table.decisions, present(*overrides, networks=networks)
        previous = table.reconfigure(networks, terms, paused=False)
        again = DecisionTable()
        again.reconfigure(networks, terms, paused=False)
        again.update(CONNECTIONS)
        assert table.decisions == again.decisions
        changed = {token for token in CONNECTIONS if table.decisions[token] != before[token]}
        assert changed <= previous.keys()
        for decision in (decision for each in table.decisions.values() for decision in each):
            check_verdicts(decision, terms)


def check_verdicts(decision: Decision, terms: PresentTerms) -> None:
    """A share is a client's own exactly in the directions in which its terms are, and has a rate."""
    address = ETHERNET.client_prefix.first(decision.subflow.ends.client.address)
    own = terms.by_client.get((decision.network or "", address), {})
    for direction in Direction:
        share = decision.of(direction).share
        if share is not None:
            assert share.client == (address if direction.cap in own else None)
            assert terms.rate(share) is not None


def decide(per: Per, *overrides: Override) -> dict[str, Decision]:
    """The decisions for the downloads of three clients of Ethernet, by their addresses."""
    networks = WIFI, replace(ETHERNET, per=per)
    table = DecisionTable()
    table.reconfigure(networks, present(*overrides, networks=networks), paused=False)
    table.update({each.token: each for each in map(client, (1, 2, 3))})
    decisions = (decision for each in table.decisions.values() for decision in each)
    return {str(d.subflow.ends.client.address): d for d in decisions if d.network == "ethernet"}


@pytest.mark.parametrize("per", Per)
def test_client_with_a_rate_of_its_own_has_a_share_of_its_own(per: Per) -> None:
    before, after = decide(per), decide(per, of_client("10.1.0.2", FIVE))
    verdict = after.pop("10.1.0.2").downlink
    assert verdict.share == Share("ethernet", RateKind.CAP, "10.1.0.2", ip_address("10.1.0.2"))
    assert verdict.reason == f"wifi is live; cap: {BY_HAND}, until reset"
    del before["10.1.0.2"]
    assert after == before != {}


def test_client_is_freed_alone_and_the_reason_says_so() -> None:
    decisions = decide(Per.NETWORK, of_client("10.1.0.2", None, 60.0))
    freed = decisions.pop("10.1.0.2").downlink
    assert (freed.share, freed.reason) == (None, f"client has no cap; cap: {BY_HAND}")
    assert {d.downlink.share for d in decisions.values()} == {Share("ethernet", RateKind.CAP, "")}


def test_limit_of_a_client_bounds_its_cap_alone() -> None:
    slow, configured = Rate.parse("500kbit"), ETHERNET.rates[RateKind.CAP]
    override = of_client("10.1.0.2", slow, kind=RateKind.LIMIT)
    shares = {address: d.downlink.share for address, d in decide(Per.CLIENT, override).items()}
    rates = {address: (share.kind, present(override).rate(share)) for address, share in shares.items() if share}
    assert rates == {
        "10.1.0.1": (RateKind.CAP, configured),
        "10.1.0.2": (RateKind.CAP, slow),
        "10.1.0.3": (RateKind.CAP, configured),
    }


@pytest.fixture
def running(tmp_path: Path) -> LoopOnModels:
    return LoopOnModels(tmp_path)


def test_client_gets_its_rate_in_place_and_loses_it_at_the_end(
    running: LoopOnModels, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    connections = client(1), client(2)
    running.show(*connections)
    one, two = (each.subflows[0].ends for each in connections)
    running.operator.set(of_client("10.1.0.1", FIVE, running.clock.now + 60))
    running.loop.step()
    throttled = running.loop.snapshot.throttled
    assert {ends: each.throttle.rate for ends, each in throttled.items()} == {one: FIVE, two: Rate(1_000_000)}
    assert f"rate=5mbit class=4d50:{throttled[one].minor:x} reason='wifi is live; cap: {BY_HAND}'" in caplog.text
    (of_kernel,) = [each for each in running.kernel.pacing.situation.networks if each not in (WIFI, ETHERNET)]
    assert (of_kernel.name, of_kernel.rates, list(map(str, of_kernel.subnets))) == (
        "ethernet",
        {RateKind.CAP: FIVE},
        ["10.1.0.1/32"],
    )
    assert running.loop.next_deadline <= running.clock.now + 60
    running.clock.now += 60
    running.loop.step()
    assert {each.throttle.rate for each in running.loop.snapshot.throttled.values()} == {Rate(1_000_000)}
    assert running.kernel.pacing.situation.networks == (WIFI, ETHERNET)
    assert "override of ethernet 10.1.0.1 cap expired" in caplog.text


def test_limit_of_a_client_is_urgent_for_the_table_source(running: LoopOnModels) -> None:
    assert haste(running.show(client(1))) != Haste()
    running.operator.set(of_client("10.1.0.9", FIVE, kind=RateKind.LIMIT))
    running.loop.step()
    assert haste(running.loop.snapshot).patience == 0.0


def test_rate_of_a_client_does_not_make_its_network_overridden(running: LoopOnModels) -> None:
    running.operator.set(of_client("10.1.0.9", FIVE))
    running.loop.step()
    (overridden,) = [each for each in _rate_families(running.loop.snapshot) if each.name.endswith("overridden")]
    assert {sample.value for sample in overridden.samples} == {0}
