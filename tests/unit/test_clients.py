from __future__ import annotations

import time
from dataclasses import replace
from ipaddress import IPv6Address

import pytest
from examples import ETHERNET, WIFI, connection, subflow
from hypothesis import given
from hypothesis import strategies as st
from policy_oracle import decide_all, decision_table

from mptcp_throttle.model import Address, ClientPrefix, Connection, Token
from mptcp_throttled.policy import clients
from mptcp_throttled.policy.clients import MAX_ADDRESSES, Clients

NETWORKS = tuple(replace(network, client_prefix=ClientPrefix(ipv6=128)) for network in (WIFI, ETHERNET))
CHAIN = 4000
FEW = 4


PAIR = ("fd00:2::2", "fd00:1::2")
PREFIX = int(IPv6Address("fd00:1::"))


def address(number: int) -> Address:
    return IPv6Address(PREFIX + number)


LINKS = st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda link: link[0] != link[1])


@pytest.mark.usefixtures("_few_addresses_per_client")
@given(st.lists(st.tuples(st.sets(LINKS, max_size=4), st.sets(LINKS, max_size=4)), max_size=12))
def test_clients_equal_the_connected_addresses_unless_they_are_too_many(
    steps: list[tuple[set[tuple[int, int]], set[tuple[int, int]]]],
) -> None:
    known, present = Clients(), set[tuple[int, int]]()
    for wanted_gone, wanted in steps:
        gone, come = wanted_gone & present, wanted - present
        present = present - gone | come
        before = {number: known(address(number)) for number in range(10)}
        changed = known.change(*([(address(a), address(b)) for a, b in part] for part in (gone, come)))
        for number in range(10):
            joined = connected(number, present)
            lowest = min(joined) if len(joined) <= FEW else number
            assert known(address(number)) == address(lowest)
            assert (address(number) in changed) == (before[number] != address(lowest))


def connected(number: int, links: set[tuple[int, int]]) -> set[int]:
    joined = {number}
    while new := {end for link in links if joined & set(link) for end in link} - joined:
        joined |= new
    return joined


@pytest.fixture
def _few_addresses_per_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_ADDRESSES", FEW)


def chained(number: int) -> Connection:
    """A connection that joins two addresses of one network, and has a preferred path."""
    wifi = subflow("fd00:2::2", number)
    return connection(number, wifi, *(subflow(str(address(end)), number) for end in (number, number + 1)))


def test_chain_of_clients_concerns_few_addresses_at_each_link() -> None:
    table = decision_table(NETWORKS)
    table.update({Token(number): chained(number) for number in range(CHAIN)})
    for number in (CHAIN // 2, CHAIN // 3):
        previous = table.update({Token(number): None})
        assert len(previous) <= 1 + 2 * MAX_ADDRESSES
        previous = table.update({Token(number): chained(number)})
        assert len(previous) <= 1 + 2 * MAX_ADDRESSES


def paired(number: int, *more: str) -> Connection:
    """A connection of one client; the same with each number."""
    return connection(number, *(subflow(one, number) for one in (*PAIR, *more)))


def test_client_with_thousands_of_connections_is_renamed_in_portions() -> None:
    table = decision_table(NETWORKS)
    table.update(
        {Token(number): connection(number, *(subflow(one, number) for one in PAIR)) for number in range(CHAIN)}
    )
    # It joins a lower address to the client's.
    joining = paired(CHAIN, "fd00:1::1")
    previous = table.update({joining.token: joining})
    assert joining.token in previous
    portions = [len(previous)]
    while not table.complete:
        portions.append(len(table.update({})))
    assert sum(portions) == CHAIN + 1
    assert max(portions) <= 257
    assert {d.subflow.ends: d for of in table.decisions.values() for d in of} == {
        d.subflow.ends: d for d in decide_all(table.connections.values(), NETWORKS)
    }


def test_connection_that_waits_for_its_portion_may_end_or_change() -> None:
    table = decision_table(NETWORKS)
    table.update({Token(number): paired(number) for number in range(1000)})
    joining = paired(1000, "fd00:1::1")
    table.update({joining.token: joining})
    alone = connection(998, subflow("fd00:1::2", 998))
    previous = table.update({Token(999): None, Token(998): alone})
    assert {Token(998), Token(999)} < previous.keys()
    assert table.decisions[Token(998)][0].downlink.share is None
    while not table.complete:
        assert not {Token(998), Token(999)} & table.update({}).keys()
    assert Token(999) not in table.decisions


def test_links_of_a_large_table_are_followed_in_linear_time() -> None:
    chain = [(address(number), address(number + 1)) for number in range(20_000)]
    hub = [(address(100_000), address(200_000 + number)) for number in range(20_000)]
    links = [link for pair in zip(chain, hub, strict=True) for link in pair]
    known, began = Clients(), time.process_time()
    known.change((), links)
    assert {known(end) for end in links[0]} == set(links[0])
    for link in links[:1000]:
        known.change([link], ())
        known.change((), [link])
    assert time.process_time() - began < 10
