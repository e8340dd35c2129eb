from dataclasses import replace

import pytest
from examples import ETHERNET, WIFI, connection, network, subflow
from hypothesis import given
from hypothesis import strategies as st
from policy_oracle import as_configured, decide_all, decision_table, reconfigure

from mptcp_throttle.model import (
    AccessNetwork,
    Ailment,
    ClientPrefix,
    Connection,
    Direction,
    Health,
    RateKind,
    Token,
)
from mptcp_throttle.ports import Ports
from mptcp_throttle.units import Rate
from mptcp_throttled.vocabulary.decision import Decision, Verdict


def held(connections: list[Connection], *networks: AccessNetwork) -> dict[str, tuple[str, str]]:
    """Client end -> (kind, rate) of every subflow that is throttled."""
    return throttles(Direction.DOWNLINK, connections, *networks)


def throttles(
    direction: Direction, connections: list[Connection], *networks: AccessNetwork
) -> dict[str, tuple[str, str]]:
    """Client end -> (kind, rate) of every subflow that is throttled in this direction."""
    terms = as_configured(networks or (WIFI, ETHERNET))
    decisions = decide_all(connections, networks or (WIFI, ETHERNET))
    found = ((d.subflow.ends.client, terms.throttle(d.of(direction))) for d in decisions)
    return {str(client): (t.share.kind, str(t.rate)) for client, t in found if t is not None}


def shares(connections: list[Connection], *networks: AccessNetwork) -> dict[str, str]:
    return {
        str(d.subflow.ends.client): d.downlink.share.who
        for d in decide_all(connections, networks)
        if d.downlink.share is not None
    }


BOTH = connection(1, subflow("10.1.0.2"), subflow("10.2.0.2"))
FREE = {
    "the only path": [connection(1, subflow("10.1.0.2"))],
    "a preferred path of another connection": [connection(1, subflow("10.1.0.2")), connection(2, subflow("10.2.0.2"))],
    "a backup path": [connection(1, subflow("10.1.0.2"), subflow("10.2.0.2", backup=True))],
    "a stalled path": [connection(1, subflow("10.1.0.2"), replace(subflow("10.2.0.2"), stalled=True))],
    "a sick path": [connection(1, subflow("10.1.0.2"), replace(subflow("10.2.0.2"), ailment=Ailment.RTT))],
    "a backup subflow": [connection(1, subflow("10.1.0.2", backup=True), subflow("10.2.0.2"))],
}


def test_cap_applies_while_a_preferred_path_is_live() -> None:
    assert held([BOTH]) == {"10.1.0.2:40000": ("cap", "1mbit")}
    (capped, free) = decide_all([BOTH], (WIFI, ETHERNET))
    assert (capped.network, capped.downlink.reason) == ("ethernet", "wifi is live")
    assert (free.network, free.downlink.share) == ("wifi", None)


@pytest.mark.parametrize(
    ("ailment", "reason"),
    [
        (Ailment.RTT, "round trip above 400ms"),
        (Ailment.LOSS, "loss above 2.5%"),
        (Ailment.RATE, "rate below 1mbit"),
        (Ailment.DATA_ACKS, "no DATA_ACKs"),
    ],
)
def test_reason_names_what_makes_a_path_sick(ailment: Ailment, reason: str) -> None:
    wifi = replace(WIFI, healthy=Health(0.4, 0.025, Rate.parse("1mbit")))
    sick = connection(1, subflow("10.1.0.2"), replace(subflow("10.2.0.2"), ailment=ailment))
    (free, _) = decide_all([sick], (wifi, ETHERNET))
    assert free.downlink == Verdict(None, f"wifi is sick: {reason}")


def test_healthy_path_beside_a_sick_one_justifies_the_cap() -> None:
    sick, healthy = replace(subflow("10.2.0.2"), ailment=Ailment.LOSS), subflow("10.2.0.3")
    assert held([connection(1, subflow("10.1.0.2"), sick, healthy)]) == {"10.1.0.2:40000": ("cap", "1mbit")}


def test_sick_path_is_never_capped_for_itself() -> None:
    assert held([connection(1, replace(subflow("10.2.0.2"), ailment=Ailment.RTT), subflow("10.1.0.2"))]) == {}


@pytest.mark.parametrize("connections", FREE.values(), ids=FREE)
def test_subflow_is_not_capped_beside(connections: list[Connection]) -> None:
    assert held(connections) == {}


def test_cap_needs_a_more_preferred_network_and_never_exceeds_the_limit() -> None:
    assert held([BOTH], replace(WIFI, preference=2), ETHERNET) == {}
    odd = ETHERNET.with_rates({RateKind.CAP: Rate.parse("9mbit"), RateKind.LIMIT: Rate.parse("5mbit")})
    assert held([BOTH], WIFI, odd) == {"10.1.0.2:40000": ("cap", "5mbit")}


def test_connection_with_backups_alone_is_decided_as_without() -> None:
    backups = subflow("10.1.0.2", backup=True), subflow("10.2.0.2", backup=True)
    capped = held([connection(1, subflow("10.1.0.2"), subflow("10.2.0.2"))])
    assert held([connection(1, *backups)]) == capped != {}
    dead = replace(subflow("10.2.0.3"), stalled=True)
    assert held([connection(1, *backups, dead)]) == capped


def test_address_in_no_network_is_free_and_justifies_no_cap() -> None:
    both = connection(1, subflow("10.1.0.2"), subflow("192.0.2.1"))
    assert held([both]) == {}
    assert decide_all([both], (WIFI, ETHERNET))[1].downlink.reason == "address is in no access network"


def test_limit_applies_whenever_the_cap_does_not() -> None:
    limited = network("ethernet", 1, 2, cap="1mbit", limit="5mbit")
    lone, both = connection(1, subflow("10.1.0.2")), connection(2, subflow("10.1.0.3"), subflow("10.2.0.3"))
    backup = connection(3, subflow("10.1.0.4"), subflow("10.2.0.4", backup=True))
    assert held([lone, both, backup], WIFI, limited) == {
        "10.1.0.2:40000": ("limit", "5mbit"),
        "10.1.0.3:40000": ("cap", "1mbit"),
        "10.1.0.4:40000": ("limit", "5mbit"),
    }


def test_pause_frees_and_is_the_reason_only_for_those_it_frees() -> None:
    limited = network("ethernet", 1, 2, cap="1mbit", limit="5mbit")
    connections = [connection(1, subflow("10.1.0.2")), connection(2, subflow("10.1.0.3"), subflow("10.2.0.3"))]
    decisions = decide_all(connections, (WIFI, limited), paused=True)
    assert [d.downlink.share for d in decisions] == [None, None, None]
    assert [d.downlink.reason for d in decisions] == ["paused by the operator"] * 2 + ["network has no cap"]


UPLINK = ETHERNET.with_rates(
    {RateKind.CAP: None, RateKind.UPLINK_CAP: Rate.parse("250kbit"), RateKind.UPLINK_LIMIT: Rate.parse("4mbit")}
)


def test_uplink_has_rates_of_its_own_by_the_same_rules() -> None:
    lone, both = connection(1, subflow("10.1.0.2")), connection(2, subflow("10.1.0.3"), subflow("10.2.0.3"))
    backup = connection(3, subflow("10.1.0.4", backup=True), subflow("10.2.0.4"))
    decisions = decide_all([lone, both, backup], (WIFI, UPLINK))
    assert [d.downlink.share for d in decisions] == [None] * 5
    assert throttles(Direction.UPLINK, [lone, both, backup], WIFI, UPLINK) == {
        "10.1.0.2:40000": (RateKind.UPLINK_LIMIT, "4mbit"),
        "10.1.0.3:40000": (RateKind.UPLINK_CAP, "250kbit"),
    }
    assert [d.uplink.reason for d in decisions[:2]] == ["limit of the network", "wifi is live"]
    assert decisions[3].uplink.reason.startswith("backup subflow")


def test_uplink_pays_from_another_share_than_the_downlink_and_is_paused() -> None:
    capped = decide_all([BOTH], (WIFI, UPLINK.with_rates({RateKind.CAP: UPLINK.rates[RateKind.UPLINK_CAP]})))[0]
    assert None not in (capped.downlink.share, capped.uplink.share)
    assert capped.downlink.share != capped.uplink.share
    capped, free = decide_all([BOTH], (WIFI, UPLINK), paused=True)
    assert capped.uplink == Verdict(None, "paused by the operator")
    assert free.uplink == Verdict(None, "network has no cap")


def test_subflow_that_the_proxy_opened_is_throttled_by_its_socket_only() -> None:
    joined = subflow("10.1.0.2")
    opened = replace(joined, ends=replace(joined.ends, proxy=replace(joined.ends.proxy, port=40001)))
    networks = WIFI, replace(UPLINK, rates={**ETHERNET.rates, **UPLINK.rates})
    table = decision_table(networks)
    table.update({Token(1): connection(1, subflow("10.2.0.2"), opened), Token(2): connection(2, joined)})
    assert table.decisions[Token(1)][1].downlink.share is not None
    assert reconfigure(table, networks, paused=False, ports=Ports.of([8080])).keys() == {Token(1)}
    decision = table.decisions[Token(1)][1]
    assert (decision.downlink.share, decision.uplink.share is None) == (None, False)
    assert "classifier: socket" in decision.downlink.reason
    reconfigure(table, networks, paused=False, ports=None)
    assert table.decisions[Token(1)][1].downlink.share is not None


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (64, {"fd00:1::/64", "fd00:1:0:1::/64"}),
        (63, {"fd00:1::/63"}),
        (128, {"fd00:1::2", "fd00:1::3", "fd00:1:0:1::2"}),
    ],
)
def test_addresses_of_one_prefix_are_one_client(bits: int, expected: set[str]) -> None:
    network = replace(ETHERNET, client_prefix=ClientPrefix(ipv6=bits))
    addresses = ["fd00:1::2", "fd00:1::3", "fd00:1:0:1::2"]
    connections = [connection(n, subflow(one), subflow(f"fd00:2::{n}")) for n, one in enumerate(addresses)]
    assert set(shares(connections, WIFI, network).values()) == expected


def test_token_joins_the_prefixes_of_a_client() -> None:
    network = replace(ETHERNET, client_prefix=ClientPrefix(ipv4=24, ipv6=64))
    both = connection(1, subflow("10.1.7.2"), subflow("fd00:1::2"), subflow("10.2.0.2"))
    others = (
        connection(2, subflow("10.1.7.3"), subflow("10.2.0.3")),
        connection(3, subflow("fd00:1::3"), subflow("10.2.0.4")),
    )
    assert set(shares([both, *others], WIFI, network).values()) == {"10.1.7.0/24"}


_SUBFLOWS = st.builds(
    lambda net, host, port, backup, ailment: replace(
        subflow(f"10.{net}.0.{host}", port, backup=backup), ailment=ailment
    ),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from((None, *Ailment)),
)
_CONNECTIONS = st.lists(st.lists(_SUBFLOWS, min_size=1, max_size=4), max_size=4).map(
    lambda tables: [connection(number, *subflows) for number, subflows in enumerate(tables)]
)


@given(_CONNECTIONS)
def test_cap_always_has_a_healthy_preferred_path_of_its_connection(connections: list[Connection]) -> None:
    networks = [WIFI, ETHERNET, network("third", 3, 3, cap="2mbit", limit="3mbit")]
    preference = {n.name: n.preference for n in networks}
    decisions = decide_all(connections, networks)
    assert len(decisions) == sum(len(c.subflows) for c in connections)
    for decision in decisions:
        if decision.downlink.share is not None and decision.downlink.share.kind is RateKind.CAP:
            siblings = [other for other in decisions if other.token == decision.token]
            backups_used = all(sibling.subflow.backup for sibling in siblings)
            assert any(
                _is_preferred_to(other, decision, preference)
                and other.subflow.ailment is None
                and (backups_used or not other.subflow.backup)
                for other in siblings
            )


def _is_preferred_to(other: Decision, capped: Decision, preference: dict[str, int]) -> bool:
    return (
        other.token == capped.token
        and other.network is not None
        and capped.network is not None
        and preference[other.network] < preference[capped.network]
        and (
            other.downlink.share is None
            or other.downlink.share.kind is RateKind.LIMIT
            or other.network != capped.network
        )
    )
