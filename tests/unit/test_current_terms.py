"""Terms that are kept up to date: always those of all clients computed again, and no more clients than have place."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Final, cast

import pytest
from examples import ETHERNET, WIFI
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttle.model import Address, Budget, Counting, Devices, Every, NamedClient, Per, RateKind, Stage, Window
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import ONE_PROXY, Proxies, Proxy
from mptcp_throttle.units import Rate
from mptcp_throttle.when import When
from mptcp_throttled.kernel.networks_map import NetworksMap, pack_networks
from mptcp_throttled.policy import terms as rules
from mptcp_throttled.policy.client_networks import ClientNetworks
from mptcp_throttled.policy.current_terms import CurrentTerms
from mptcp_throttled.policy.terms import terms_of
from mptcp_throttled.vocabulary.budgets import Reached, Spent
from mptcp_throttled.vocabulary.operator import Override
from mptcp_throttled.vocabulary.terms import Facts, RuleInput, RuleName, Terms, WallClock

if TYPE_CHECKING:
    from mptcp_throttle.linux.libbpf import BpfMap

SLOW: Final = Stage(1.0, {RateKind.CAP: Rate(256_000)})
BUDGET: Final = Budget(1000, Per.CLIENT, Counting.BOTH, Every.MONTH, 1, None, (SLOW,))
DEVICE: Final = NamedClient(
    "phone", (ip_network("10.1.0.3/32"), ip_network("10.1.0.9/32")), {RateKind.CAP: Rate(4_000_000)}
)
WINDOW: Final = Window(When.parse("08:00-09:00"), {RateKind.CAP: Rate(512_000)})
NETWORKS: Final = (
    WIFI,
    replace(ETHERNET, overflow=Rate(10_000_000), devices=Devices((DEVICE,)), schedule=(WINDOW,), budgets=(BUDGET,)),
)
CLIENTS: Final = [ip_address(f"10.1.0.{number}") for number in range(1, 6)]

ENDS: Final = st.sampled_from([None, 30.0, 60.0])
SPENT: Final = st.dictionaries(
    st.sampled_from([None, *CLIENTS]), ENDS.map(lambda end: (Reached(BUDGET, 1, end),)), max_size=4
)
SHORTFALLS: Final = st.dictionaries(st.sampled_from(CLIENTS), st.sampled_from([Rate(5_000_000), Rate(7_000_000)]))
OVERRIDES: Final = st.lists(
    st.builds(
        Override,
        st.just("ethernet"),
        st.just(RateKind.CAP),
        st.just(Rate(3_000_000)),
        ENDS,
        st.sampled_from([None, *CLIENTS]),
    ),
    unique_by=lambda each: each.client,
    max_size=2,
).map(tuple)
FACTS: Final = st.builds(
    Facts,
    OVERRIDES,
    st.sampled_from([WallClock(), WallClock(7 * 3600 + 3590.0)]),
    SPENT.map(lambda each: {"ethernet": each}),
    SHORTFALLS.map(lambda each: {"ethernet": each}),
)


class Elements:
    """The elements of a map."""

    def __init__(self) -> None:
        self.present: dict[bytes, bytes] = {}

    def update(self, elements: dict[bytes, bytes]) -> None:
        """Set them."""
        self.present |= elements

    def delete_all(self, keys: set[bytes]) -> None:
        """Delete these."""
        for key in keys:
            del self.present[key]


@given(st.lists(st.tuples(FACTS, st.sampled_from([0.0, 10.0, 25.0])), max_size=6))
def test_terms_and_map_are_those_of_all_clients_computed_again(steps: list[tuple[Facts, float]]) -> None:
    current, now, elements = CurrentTerms(), 0.0, Elements()
    networks_map = NetworksMap(cast("BpfMap", elements), ONE_PROXY)
    for facts, seconds in steps:
        now += seconds
        terms = current.update(NETWORKS, now, facts)
        again = terms_of(NETWORKS, now, facts)
        assert terms == again
        assert (terms.rates, terms.client_rates, terms.next_change) == (
            again.rates,
            again.client_rates,
            again.next_change,
        )
        networks = tuple(
            network.with_rates({kind: term.rate for kind, term in terms.by_network[network.name].items()})
            for network in NETWORKS
        )
        of_clients = ClientNetworks().of(networks, terms.by_client)
        assert {(each.name, each.subnets): each for each in current.effective} == {
            (each.name, each.subnets): each for each in (*networks, *of_clients)
        }
        networks_map.set(current.effective)
        assert elements.present == pack_networks(current.effective, ONE_PROXY)


def test_change_of_one_client_computes_its_terms_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ip_address("10.1.1.0")
    spent: dict[Address | None, tuple[Reached, ...]] = {first + n: (Reached(BUDGET, 1, 30.0 + n),) for n in range(200)}
    current = CurrentTerms()
    current.update(NETWORKS, 0.0, Facts(spent={"ethernet": dict(spent)}))
    asked = _asked(monkeypatch)
    new = ip_address("10.1.3.1")
    terms = current.update(NETWORKS, 0.0, Facts(spent={"ethernet": {**spent, new: (Reached(BUDGET, 1, None),)}}))
    assert asked == [new]
    assert len(terms.by_client) == 202


def test_clients_with_equal_facts_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ip_address("10.1.1.0")
    spent: dict[Address | None, tuple[Reached, ...]] = {
        first + n: (Reached(BUDGET, 1, 30.0 if n < 100 else 60.0),) for n in range(200)
    }
    asked = _asked(monkeypatch)
    terms = CurrentTerms().update(NETWORKS, 0.0, Facts(spent={"ethernet": spent}))
    assert asked == [first, first + 100]
    assert len(terms.by_client) == 201


def _asked(monkeypatch: pytest.MonkeyPatch) -> list[Address]:
    """The clients without a name for which rules are asked from now on."""
    asked: list[Address] = []
    steps = rules.steps

    def noted(given: RuleInput) -> list[Terms]:
        if given.client is not None and given.client != DEVICE.first:
            asked.append(given.client)
        return steps(given)

    monkeypatch.setattr(rules, "steps", noted)
    return asked


def test_clients_without_place_have_the_rates_of_their_network() -> None:
    proxies = Proxies({name: Proxy((), Ports.of([port])) for name, port in (("a", 80), ("b", 81))})
    subnets = 2 * sum(len(network.subnets) for network in NETWORKS)
    current = CurrentTerms(proxies, subnets + 2 * 4)
    by_hand = Override("ethernet", RateKind.CAP, Rate(3_000_000), None, CLIENTS[4])
    shortfalls = {"ethernet": dict.fromkeys(CLIENTS[:2], Rate(7_000_000))}
    spent: Spent = {"ethernet": {CLIENTS[3]: (Reached(BUDGET, 1, None),)}}
    facts = Facts((by_hand,), spent=spent, shortfalls=shortfalls)
    networks = tuple(replace(network, burst=10**6) for network in NETWORKS)
    terms = current.update(networks, 0.0, facts)
    assert terms.bursts == dict.fromkeys(("wifi", "ethernet"), 10**6)
    # The device has two prefixes, and an overflow goes first.
    assert {str(client): own[RateKind.CAP].rule for (_, client), own in terms.by_client.items()} == {
        "10.1.0.3": RuleName.DEVICE,
        "10.1.0.4": RuleName.BUDGET,
        "10.1.0.5": RuleName.BY_HAND,
    }
    assert len(pack_networks(current.effective, proxies)) <= subnets + 2 * 4 + 2
    (error,) = current.errors
    assert error.startswith("ethernet: kernel programs have no place for all clients with rates of their own")
    current.update(networks, 0.0, facts._replace(shortfalls={}))
    assert current.errors == ()
