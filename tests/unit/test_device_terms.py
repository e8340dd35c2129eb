"""Own rates of devices: what they replace, and that all addresses of a device share them."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

import pytest
from examples import ETHERNET, WIFI, connection, subflow
from hypothesis import given
from hypothesis import strategies as st
from loops import LoopOnModels
from worlds import configuration

from mptcp_throttle.errors import ConfigError, UserError
from mptcp_throttle.model import (
    AccessNetwork,
    Budget,
    Counting,
    Devices,
    Every,
    NamedClient,
    Per,
    RateKind,
    Stage,
    Window,
)
from mptcp_throttle.subnet_table import network_table
from mptcp_throttle.units import Rate
from mptcp_throttle.when import When
from mptcp_throttled.policy.client_networks import ClientNetworks
from mptcp_throttled.policy.decisions import DecisionTable
from mptcp_throttled.policy.terms import rule_input, steps, terms_of
from mptcp_throttled.vocabulary.budgets import Reached, Spent
from mptcp_throttled.vocabulary.decision import Decision, Share
from mptcp_throttled.vocabulary.operator import Override
from mptcp_throttled.vocabulary.terms import Facts, PresentTerms, RuleName, Term, WallClock

FIVE: Final = Rate.parse("5mbit")
FIRST: Final = ip_address("10.1.0.2")
PREFIXES: Final = tuple(map(ip_network, ("10.1.0.2/32", "10.1.0.9/32", "fd00:1:0:7::/64")))
ADDRESSES: Final = ("10.1.0.2", "10.1.0.9", "fd00:1:0:7::5")
OWN: Final = "own rate of the device"


def with_device(
    rates: dict[RateKind, Rate | None], network: AccessNetwork = ETHERNET, *more: NamedClient
) -> AccessNetwork:
    return replace(network, devices=Devices((NamedClient("phone", PREFIXES, rates), *more)))


def test_own_rate_replaces_that_of_the_network_and_its_schedule() -> None:
    window = Window(When.parse("00:00-24:00"), {RateKind.CAP: Rate.parse("512kbit"), RateKind.LIMIT: FIVE})
    network = with_device({RateKind.CAP: FIVE}, replace(ETHERNET, schedule=(window,)))
    terms = terms_of((WIFI, network), 0.0, Facts((), WallClock(1.7e9)))
    own = terms.by_client["ethernet", FIRST]
    assert own[RateKind.CAP] == Term(FIVE, OWN, None, RuleName.DEVICE)
    # What it has no rate of is the network's, until the window ends.
    assert own[RateKind.LIMIT] == terms.by_network["ethernet"][RateKind.LIMIT]
    assert own[RateKind.LIMIT].rule is RuleName.SCHEDULE
    assert terms.by_network["ethernet"][RateKind.CAP].rate == Rate.parse("512kbit")


def test_overflow_raises_the_own_cap_of_a_device_up_to_its_own_limit() -> None:
    network = replace(with_device({RateKind.CAP: FIVE, RateKind.LIMIT: Rate(7_000_000)}), overflow=Rate(20_000_000))

    def cap(shortfall: int) -> Term:
        facts = Facts(shortfalls={"ethernet": {FIRST: Rate(shortfall)}})
        return terms_of((WIFI, network), 0.0, facts).by_client["ethernet", FIRST][RateKind.CAP]

    assert [(cap(n).rate, cap(n).rule) for n in (3_000_000, 6_000_000, 9_000_000)] == [
        (FIVE, RuleName.DEVICE),
        (Rate(6_000_000), RuleName.OVERFLOW),
        (Rate(7_000_000), RuleName.OVERFLOW),
    ]


def test_facts_about_a_device_do_not_concern_others_with_the_same_rates() -> None:
    more = [NamedClient(f"d{n}", (ip_network(f"10.1.1.{n}/32"),), {RateKind.CAP: FIVE}) for n in range(3)]
    network = with_device({RateKind.CAP: FIVE}, ETHERNET, *more)
    override = Override("ethernet", RateKind.CAP, Rate(2_000_000), None, ip_address("10.1.1.1"))
    present = terms_of((WIFI, network), 0.0, Facts((override,), shortfalls={"ethernet": {FIRST: FIVE}}))
    assert {str(client): terms[RateKind.CAP].rate for (_, client), terms in present.by_client.items()} == {
        **dict.fromkeys(("10.1.0.2", "10.1.1.0", "10.1.1.2"), FIVE),
        "10.1.1.1": Rate(2_000_000),
    }


def test_device_without_own_rates_has_those_of_its_network() -> None:
    assert terms_of((with_device({}),), 0.0, Facts()).by_client == {}


def test_budget_narrows_own_rates_and_by_hand_replaces_both() -> None:
    slow = Rate.parse("256kbit")
    counted = Per.CLIENT, Counting.BOTH, Every.MONTH
    budget = Budget(5 * 10**9, *counted, 1, None, (Stage(1.0, {RateKind.CAP: slow, RateKind.LIMIT: slow}),))
    spent: Spent = {"ethernet": {FIRST: (Reached(budget, len(budget.stages), None),)}}
    networks = WIFI, with_device({RateKind.CAP: FIVE})
    own = terms_of(networks, 0.0, Facts(spent=spent)).by_client["ethernet", FIRST]
    assert {kind: (term.rate, term.rule) for kind, term in own.items()} == {
        RateKind.CAP: (slow, RuleName.BUDGET),
        RateKind.LIMIT: (slow, RuleName.BUDGET),
    }
    by_hand = Override("ethernet", RateKind.CAP, Rate(2_000_000), None, ip_address("10.1.0.9"))
    own = terms_of(networks, 0.0, Facts((by_hand,), spent=spent)).by_client["ethernet", FIRST]
    assert (own[RateKind.CAP].rate, own[RateKind.LIMIT].rate) == (Rate(2_000_000), slow)


RATES: Final = st.one_of(st.none(), st.integers(1, 9).map(lambda number: Rate(number * 500_000)))
KINDS: Final = st.dictionaries(st.sampled_from(RateKind), RATES)
WINDOWS: Final = st.lists(KINDS.map(lambda rates: Window(When.parse("00:00-24:00"), rates)), max_size=1).map(tuple)
OVERRIDES: Final = st.lists(
    st.builds(
        Override,
        st.just("ethernet"),
        st.sampled_from(RateKind),
        RATES,
        st.sampled_from([None, 10.0, 20.0]),
        st.sampled_from([None, *map(ip_address, (*ADDRESSES, "10.1.0.7"))]),
    ),
    unique_by=lambda each: (each.kind, each.client if each.client == ip_address("10.1.0.7") else bool(each.client)),
    max_size=8,
)


@given(KINDS, WINDOWS, OVERRIDES, st.sampled_from([0.0, 10.0, 15.0]))
def test_by_hand_comes_before_own_rates_and_these_before_schedule_and_file(
    own: dict[RateKind, Rate | None], schedule: tuple[Window, ...], overrides: list[Override], now: float
) -> None:
    network = with_device(own, replace(ETHERNET, schedule=schedule))
    facts = Facts(tuple(overrides), WallClock(1.7e9))
    terms = terms_of((WIFI, network), now, facts)
    present = [each for each in overrides if each.end is None or each.end > now]
    for kind in RateKind:
        expected, *_ = [
            *(each.rate for each in present if each.kind is kind and str(each.client) in ADDRESSES),
            *(each.rate for each in present if each.kind is kind and each.client is None),
            *(rates[kind] for rates in (own, *(window.rates for window in schedule)) if kind in rates),
            network.rates.get(kind),
        ]
        of_client = terms.by_client.get(("ethernet", FIRST), {})
        of_network = terms.by_network["ethernet"]
        assert (of_client.get(kind) or of_network.get(kind, Term(None))).rate == expected
        assert steps(rule_input(network, FIRST, now, facts))[-1].get(kind, Term(None)).rate == expected
    assert {client for _, client in terms.by_client} <= {FIRST, ip_address("10.1.0.7")}


def decided(networks: tuple[AccessNetwork, ...], terms: PresentTerms | None = None) -> dict[str, Decision]:
    """The decisions for clients of Ethernet by address: each has a connection of its own, over Wi-Fi too."""
    table = DecisionTable()
    table.reconfigure(networks, terms or terms_of(networks, 0.0, Facts()), paused=False)
    addresses = (*ADDRESSES, "10.1.0.7", "fd00:1:0:8::5")
    connections = [connection(n, subflow(each), subflow(f"10.2.0.{n}")) for n, each in enumerate(addresses, 1)]
    table.update({each.token: each for each in connections})
    decisions = (decision for each in table.decisions.values() for decision in each)
    return {str(d.subflow.ends.client.address): d for d in decisions if d.network == "ethernet"}


@pytest.mark.parametrize("per", Per)
def test_all_addresses_of_a_device_share_its_own_rate(per: Per) -> None:
    networks = WIFI, replace(with_device({RateKind.CAP: FIVE}), per=per)
    decisions, terms = decided(networks), terms_of(networks, 0.0, Facts())
    shares = {decisions[address].downlink.share for address in ADDRESSES}
    assert shares == {Share("ethernet", RateKind.CAP, "10.1.0.2", FIRST)}
    assert [terms.rate(share) for share in shares if share is not None] == [FIVE]
    assert {decisions[address].downlink.reason for address in ADDRESSES} == {f"wifi is live; cap: {OWN}"}
    without = decided((WIFI, replace(ETHERNET, per=per)))
    for address in ("10.1.0.7", "fd00:1:0:8::5"):
        assert decisions[address] == without[address]


def test_addresses_of_a_device_without_own_rates_are_one_client() -> None:
    decisions = decided((WIFI, with_device({})))
    assert {decisions[address].downlink.share for address in ADDRESSES} == {Share("ethernet", RateKind.CAP, "10.1.0.2")}
    assert decisions["10.1.0.7"].downlink.share == Share("ethernet", RateKind.CAP, "10.1.0.7")


def test_connection_joins_a_device_and_another_address() -> None:
    networks = WIFI, with_device({})
    table = DecisionTable()
    table.reconfigure(networks, terms_of(networks, 0.0, Facts()), paused=False)
    joining = connection(1, subflow("10.1.0.9"), subflow("10.1.0.200"), subflow("10.2.0.1"))
    apart = connection(2, subflow("fd00:1:0:7::1"), subflow("10.2.0.2"))
    table.update({each.token: each for each in (joining, apart)})
    decisions = (decision for each in table.decisions.values() for decision in each if decision.network == "ethernet")
    assert {decision.downlink.share for decision in decisions} == {Share("ethernet", RateKind.CAP, "10.1.0.2")}


def test_device_may_have_no_cap_where_its_network_has_one() -> None:
    decisions = decided((WIFI, with_device({RateKind.CAP: None})))
    assert (decisions["10.1.0.9"].downlink.share, decisions["10.1.0.9"].downlink.reason) == (
        None,
        f"client has no cap; cap: {OWN}",
    )
    assert decisions["10.1.0.7"].downlink.share is not None


def test_kernel_programs_find_all_prefixes_of_a_device_by_one_network() -> None:
    # A part of the device's prefix belongs to Wi-Fi, by a longer subnet, and another is a subnet of Ethernet itself.
    wide = NamedClient("lab", (ip_network("10.1.4.0/24"),), {RateKind.CAP: FIVE})
    ethernet = with_device({RateKind.CAP: FIVE}, ETHERNET, wide)
    ethernet = replace(ethernet, subnets=(*ethernet.subnets, ip_network("10.1.4.128/26")))
    wifi = replace(WIFI, subnets=(*WIFI.subnets, ip_network("10.1.4.128/25")))
    networks = wifi, ethernet
    phone, lab = ClientNetworks().of(networks, terms_of(networks, 0.0, Facts()).by_client)
    assert {str(subnet) for subnet in phone.subnets} == {str(prefix) for prefix in PREFIXES}
    assert {str(subnet) for subnet in lab.subnets} == {"10.1.4.0/24", "10.1.4.128/26"}
    table = network_table((*networks, phone, lab))
    for address, network in (("10.1.4.3", lab), ("10.1.4.130", lab), ("10.1.4.200", wifi), ("10.1.0.9", phone)):
        assert table.find(ip_address(address)) is network
    assert (phone.name, phone.rates) == ("ethernet", {RateKind.CAP: FIVE})


@pytest.fixture
def running(tmp_path: Path) -> LoopOnModels:
    return LoopOnModels(tmp_path, (WIFI, with_device({RateKind.CAP: FIVE})))


def reload(running: LoopOnModels, loaded: tuple[AccessNetwork, ...] | ConfigError) -> None:
    config = loaded if isinstance(loaded, ConfigError) else configuration(loaded)
    running.running.take(config, running.clock.time())
    running.operator.adopt(running.running.config.networks)
    running.loop.step()


def test_reload_changes_adds_and_removes_own_rates_of_running_transfers(running: LoopOnModels) -> None:
    connections = [connection(n, subflow(each), subflow(f"10.2.0.{n}")) for n, each in enumerate(ADDRESSES, 1)]
    capped = [each.subflows[0].ends for each in connections]
    running.show(*connections)

    def applied() -> set[tuple[int, Rate]]:
        throttled = running.loop.snapshot.throttled
        return {(throttled[ends].minor, throttled[ends].throttle.rate) for ends in capped}

    ((first, rate),) = applied()
    assert rate == FIVE
    reload(running, (WIFI, with_device({RateKind.CAP: Rate(3_000_000)})))
    assert applied() == {(first, Rate(3_000_000))}
    reload(running, ConfigError(["clients.d/phone.yaml:1: name: is required"]))
    assert applied() == {(first, Rate(3_000_000))}
    reload(running, (WIFI, ETHERNET))
    assert {rate for _, rate in applied()} == {Rate(1_000_000)}
    assert len(applied()) == len(ADDRESSES)
    reload(running, (WIFI, with_device({RateKind.CAP: FIVE})))
    assert {rate for _, rate in applied()} == {FIVE}
    assert len(applied()) == 1


def test_limit_by_hand_of_the_network_bounds_the_own_cap_of_a_device() -> None:
    networks = WIFI, with_device({RateKind.CAP: FIVE})
    slow = Rate.parse("500kbit")
    terms = terms_of(networks, 0.0, Facts((Override("ethernet", RateKind.LIMIT, slow, None),)))
    (share,) = {decided(networks, terms)[address].downlink.share for address in ADDRESSES}
    assert share is not None
    assert terms.rate(share) == slow


def test_cap_by_hand_of_a_device_must_fit_its_own_limit(running: LoopOnModels) -> None:
    reload(running, (WIFI, with_device({RateKind.LIMIT: FIVE})))
    high = Override("ethernet", RateKind.CAP, Rate.parse("6mbit"), None, ip_address("10.1.0.9"))
    with pytest.raises(UserError, match="cap 6mbit would be more than limit 5mbit; allowed: up to it"):
        running.operator.set(high)
    running.operator.set(replace(high, rate=FIVE))
    running.loop.step()
    assert running.loop.snapshot.terms.client_rates == {
        ("ethernet", FIRST): {RateKind.CAP: FIVE, RateKind.LIMIT: FIVE},
    }
