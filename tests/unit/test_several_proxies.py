"""Several proxies on one host: a connection is decided by the networks of the proxy that has accepted it."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Final

import pytest
from examples import ETHERNET, WIFI, cap, connection, ends, subflow
from hypothesis import given
from hypothesis import strategies as st
from loops import snapshot_of
from policy_oracle import as_configured, decide_all, decision_table
from worlds import ManualClock

from mptcp_throttle.errors import UserError
from mptcp_throttle.model import AccessNetwork, ClientPrefix, Connection, Per, RateKind, Subflow, Token
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import Proxies, Proxy, networks_of
from mptcp_throttle.units import Rate
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.ledger import Ledger
from mptcp_throttled.answers.explanation import explain
from mptcp_throttled.answers.view import View
from mptcp_throttled.control.operator_state import OperatorStore
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.decision import Share
from mptcp_throttled.vocabulary.observation import SocketState
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.traffic import ClosedSubflow, SocketTotals

if TYPE_CHECKING:
    from pathlib import Path

    from mptcp_throttled.vocabulary.decision import Decision

PORT_OF: Final = {"work": 8080, "guests": 8443}
PROXIES: Final = Proxies({name: Proxy(("eth0",), Ports.of([port])) for name, port in PORT_OF.items()})
CAPPED: Final = {RateKind.CAP: Rate.parse("1mbit")}
OF_WORK: Final = (replace(WIFI, proxy="work"), replace(ETHERNET, proxy="work"))
OF_GUESTS: Final = (
    replace(WIFI, name="guest-wifi", proxy="guests", preference=2, rates=CAPPED, per=Per.NETWORK),
    replace(ETHERNET, name="guest-ethernet", proxy="guests", preference=1, rates={}),
)
NETWORKS: Final = (*OF_WORK, *OF_GUESTS)


def accepted(port: int, number: int, *subflows: Subflow) -> Connection:
    return replace(connection(number, *subflows), port=port)


def to_port(port: int, client: str, client_port: int = 40000) -> Subflow:
    return replace(subflow(client), ends=ends(client, client_port, port))


def decided(*connections: Connection, networks: tuple[AccessNetwork, ...] = NETWORKS) -> list[Decision]:
    table = decision_table(networks, PROXIES)
    table.update({each.token: each for each in connections})
    every = [decision for each in connections for decision in table.decisions[each.token]]
    assert every == list(decide_all(connections, networks, proxies=PROXIES))
    return every


def capped(decisions: list[Decision]) -> list[tuple[str, bool]]:
    return [(str(decision.network), decision.downlink.share is not None) for decision in decisions]


def test_same_addresses_have_other_networks_at_the_port_of_each_proxy() -> None:
    both = [
        accepted(port, port, to_port(port, "10.1.0.2", port), to_port(port, "10.2.0.2", port))
        for port in PORT_OF.values()
    ]
    decisions = decided(*both)
    assert capped(decisions) == [
        ("ethernet", True),
        ("wifi", False),
        ("guest-ethernet", False),
        ("guest-wifi", True),
    ]
    shares = [decision.downlink.share for decision in decisions]
    assert [(share.network, share.who) for share in shares if share is not None] == [
        ("ethernet", "10.1.0.2"),
        ("guest-wifi", ""),
    ]


@pytest.mark.parametrize("other", [8443, 3000])
def test_subflow_to_another_port_belongs_to_the_proxy_of_its_connection(other: int) -> None:
    """It was announced with that port, or the proxy has opened it. Preferences of two proxies are not comparable."""
    over_ethernet = accepted(8080, 1, to_port(8080, "10.2.0.2"), to_port(other, "10.1.0.2"))
    over_wifi = accepted(8080, 1, to_port(8080, "10.1.0.2"), to_port(other, "10.2.0.2"))
    assert capped(decided(over_ethernet)) == [("wifi", False), ("ethernet", True)]
    assert capped(decided(over_wifi)) == [("ethernet", True), ("wifi", False)]
    # What is left when the first subflow has ended.
    assert capped(decided(accepted(8080, 1, to_port(other, "10.1.0.2")))) == [("ethernet", False)]


def test_connection_to_a_port_of_no_proxy_is_free() -> None:
    """The sniffer may have been restarted with another configuration already."""
    decisions = decided(accepted(80, 1, to_port(80, "10.1.0.2"), to_port(80, "10.2.0.2")))
    assert {(decision.network, decision.downlink.reason) for decision in decisions} == {
        (None, "address is in no access network")
    }


def test_client_has_one_share_of_a_network_of_all_proxies() -> None:
    networks = (WIFI, *OF_GUESTS[1:], replace(ETHERNET, subnets=(ip_network("fd00:1::/32"),)))
    joined = accepted(8080, 1, *(to_port(8080, each, 1) for each in ("fd00:1:1::2", "fd00:1:2::2", "10.2.0.2")))
    alone = accepted(8443, 2, *(to_port(8443, each, 2) for each in ("fd00:1:2::2", "10.2.0.2")))
    shares = [decision.downlink.share for decision in decided(joined, alone, networks=networks)]
    of_both = Share("ethernet", RateKind.CAP, "fd00:1:1::/64")
    assert shares == [of_both, of_both, None, of_both, None]


def test_prefixes_of_two_proxies_join_no_clients_of_each_other() -> None:
    networks = (*OF_WORK, *(replace(each, client_prefix=ClientPrefix(ipv4=24)) for each in OF_GUESTS))
    networks = (*networks[:3], replace(networks[3], preference=3, rates=CAPPED))
    wide = accepted(8443, 1, *(to_port(8443, each, 1) for each in ("10.1.0.9", "10.1.1.9", "10.2.0.2")))
    narrow = [
        accepted(8080, number, *(to_port(8080, each, number) for each in (address, "10.2.0.2")))
        for number, address in ((2, "10.1.0.0"), (3, "10.1.1.0"))
    ]
    decisions = decided(wide, *narrow, networks=networks)
    whos = [each.downlink.share.who for each in decisions if each.downlink.share is not None]
    assert whos == ["10.1.0.0/24", "10.1.0.0/24", "10.1.0.0", "10.1.1.0"]


ADDRESSES: Final = st.sampled_from([f"10.{third}.0.{last}" for third in (1, 2, 3) for last in (2, 3)])
CONNECTIONS: Final = st.lists(
    st.tuples(st.sampled_from([8080, 8443]), st.lists(st.tuples(ADDRESSES, st.booleans()), min_size=1, max_size=3)),
    max_size=6,
)
OWNERS: Final = st.sampled_from(["work", "guests", None])
SUBNETS: Final = [(f"10.{third}.0.0/16", f"10.{third}.0.2/32") for third in (1, 2, 3)]


@given(CONNECTIONS, st.lists(st.tuples(OWNERS, st.integers(1, 3), st.sampled_from(Per)), min_size=6, max_size=6))
def test_each_proxy_is_decided_as_if_it_were_alone(
    connections: list[tuple[int, list[tuple[str, bool]]]], networks: list[tuple[str | None, int, Per]]
) -> None:
    subnets = [subnet for pair in SUBNETS for subnet in pair]
    configured = tuple(
        replace(ETHERNET, name=f"n{number}", subnets=(ip_network(subnet),), preference=preference, per=per, proxy=owner)
        for number, (subnet, (owner, preference, per)) in enumerate(zip(subnets, networks, strict=True))
    )
    made = [
        accepted(
            port,
            number,
            *(
                replace(to_port(port, address, 1000 * number + at), backup=backup)
                for at, (address, backup) in enumerate(addresses)
            ),
        )
        for number, (port, addresses) in enumerate(connections)
    ]
    decisions = decided(*made, networks=configured)
    for name, port in PORT_OF.items():
        alone = tuple(replace(each, proxy=None) for each in networks_of(name, configured))
        expected = decide_all([each for each in made if each.port == port], alone)
        found = [decision for decision in decisions if decision.subflow.ends.proxy.port == port]
        assert [(each.network, each.downlink.reason) for each in found] == [
            (each.network, each.downlink.reason) for each in expected
        ]
        own = {each.name for each in configured if each.proxy == name}
        # A client of a network of all proxies may be known by an address that it has at the other one.
        assert [each for each in found if each.network in own] == [each for each in expected if each.network in own]


def test_rate_of_a_client_is_of_one_proxy(tmp_path: Path) -> None:
    store = OperatorStore(tmp_path / "overrides.json", NETWORKS, ManualClock(), PROXIES)
    for name in ("ethernet", "guest-ethernet"):
        kind = RateKind.LIMIT if name.startswith("guest") else RateKind.CAP
        store.set(replace(cap(name, Rate.parse("5mbit")), kind=kind, client=ip_address("10.1.0.2")))
    with pytest.raises(UserError, match=r"10\.2\.0\.2: is in wifi, guest-wifi; allowed: an address in ethernet"):
        store.set(replace(cap("ethernet", None), client=ip_address("10.2.0.2")))
    # Work prefers Wi-Fi, and guests prefer Ethernet.
    for name in ("wifi", "guest-ethernet"):
        with pytest.raises(UserError, match="is a most preferred network"):
            store.set(cap(name, None))
    store.set(cap("guest-wifi", None))
    assert store.adopt(OF_WORK) == (
        "override of guest-ethernet 10.1.0.2 limit dropped: guest-ethernet: no such access network;"
        " allowed: wifi, ethernet",
        "override of guest-wifi cap dropped: guest-wifi: no such access network; allowed: wifi, ethernet",
    )


def test_explanation_of_a_client_has_its_networks_of_all_proxies() -> None:
    table = decision_table(NETWORKS, PROXIES)
    guest = accepted(8443, 1, to_port(8443, "10.1.0.2"), to_port(8443, "10.2.0.2"))
    table.update({guest.token: guest})
    terms = as_configured(NETWORKS)
    snapshot = Snapshot(networks=NETWORKS, terms=terms, connections=table.connections, decisions=table.decisions)
    answer = explain(View(snapshot, Enforcement(), {}, Now(0.0, 0.0)), ip_address("10.1.0.2"), None, PROXIES)
    numbers = {each["name"]: [of["number"] for of in each["downlink"]["subflows"]] for each in answer["networks"]}
    assert numbers == {"ethernet": [], "guest-wifi": [1], "guest-ethernet": [1]}


def test_traffic_counts_for_the_networks_of_its_proxy(tmp_path: Path) -> None:
    announced = accepted(8080, 1, to_port(8080, "10.2.0.2"), to_port(8443, "10.1.0.2"))
    guest = accepted(8443, 2, to_port(8443, "10.1.0.3"))
    snapshot = replace(snapshot_of(tmp_path, announced, guest), networks=NETWORKS)
    accounts = Accounts(History(tmp_path / "history.sqlite", "boot"), Ledger({}, lambda: True), ManualClock(), PROXIES)
    subflows = [each.ends for connection in (announced, guest) for each in connection.subflows]
    for sent in (0, 1000):
        totals = SocketTotals(sent)
        accounts.observe({at: SocketState(0, None, totals, cookie=n) for n, at in enumerate(subflows)}, snapshot, {})
    ended = replace(snapshot, connections=snapshot.connections.delete(Token(1)))
    accounts.note_closed([ClosedSubflow(Token(1), subflows[1], 1, SocketTotals(1500))])
    accounts.observe({}, ended, {})
    assert {name: of.traffic.sent for name, of in accounts.networks.items()} == {
        "wifi": 1000,
        "ethernet": 1500,
        "guest-ethernet": 1000,
    }


def test_network_has_the_numbers_of_its_proxies() -> None:
    assert (PROXIES.numbers_of("work"), PROXIES.numbers_of("guests"), PROXIES.numbers_of(None)) == ([1], [2], [1, 2])
    assert Proxies.only(Ports.of([8080])).numbers_of(None) == [1]
