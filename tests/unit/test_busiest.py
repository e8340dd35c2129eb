"""The answer to `top`: who is in it, in which order, and that it stays small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from examples import client, connection, ends, subflow
from loops import snapshot_of

from mptcp_throttle.errors import UserError
from mptcp_throttle.rpc import Json
from mptcp_throttle.rpc.wire import Order
from mptcp_throttled.answers import busiest as busiest_module
from mptcp_throttled.answers.busiest import IndexedClients, requested_order
from mptcp_throttled.answers.client_index import ClientIndex
from mptcp_throttled.answers.subflow_counts import SubflowCounts
from mptcp_throttled.answers.view import View
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.snapshot import Snapshot

NOW = Now(1000.0, 1.7e9)


def busiest(snapshot: Snapshot, number: int = 10, order: Order = Order.SENT, pattern: str = "") -> Json:
    index = ClientIndex()
    index.update(snapshot)
    indexed = IndexedClients(index, SubflowCounts.of(snapshot))
    return busiest_module.busiest(View(snapshot, OBSERVED, {}, NOW), indexed, number, order, pattern)


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return snapshot_of(tmp_path, client(1), client(2), connection(3, subflow("10.2.0.3"), subflow("10.2.0.3", 41000)))


OBSERVED = Enforcement(
    rates={ends("10.1.0.1"): 62_500.0, ends("10.2.0.1"): 1e6, ends("10.2.0.2"): 5e6, ends("10.2.0.3"): 2e6},
    received_rates={ends("10.2.0.1"): 7e6},
)


def clients(answer: Json, network: str) -> list[str]:
    (found,) = (one for one in answer["networks"] if one["name"] == network)
    return [one["client"] for one in found["clients"]]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (Order.SENT, ["10.2.0.2", "10.2.0.3", "10.2.0.1"]),
        (Order.RECEIVED, ["10.2.0.1", "10.2.0.2", "10.2.0.3"]),
        (Order.SUBFLOWS, ["10.2.0.3", "10.2.0.1", "10.2.0.2"]),
        (Order.NAME, ["10.2.0.1", "10.2.0.2", "10.2.0.3"]),
    ],
)
def test_clients_are_in_the_order_asked_for(snapshot: Snapshot, order: Order, expected: list[str]) -> None:
    assert clients(busiest(snapshot, 10, order, ""), "wifi") == expected


def test_as_many_clients_as_asked_for_have_their_rate_and_use(snapshot: Snapshot) -> None:
    answer = busiest(snapshot, 1)
    assert clients(answer, "wifi") == ["10.2.0.2"]
    assert [network["more_clients"] for network in answer["networks"]] == [2, 1]
    (ethernet,) = (network for network in answer["networks"] if network["name"] == "ethernet")
    (first,) = ethernet["clients"]
    assert (first["client"], first["rate_bps"], first["throttled_bps"]) == ("10.1.0.1", 1_000_000, 500_000)
    assert [subflow["state"] for subflow in first["subflows"]] == ["cap"]
    assert first["subflows"][0]["downlink"]["reason"] == "wifi is live"


@pytest.mark.parametrize(
    ("pattern", "wifi", "ethernet"),
    [
        ("10.2.0.2", ["10.2.0.2"], []),
        (":41000", ["10.2.0.3"], []),
        ("cap", [], ["10.1.0.1", "10.1.0.2"]),
        ("ETHERNET", [], ["10.1.0.1", "10.1.0.2"]),
        ("nobody", [], []),
    ],
)
def test_filter_selects_subflows(snapshot: Snapshot, pattern: str, wifi: list[str], ethernet: list[str]) -> None:
    answer = busiest(snapshot, 10, Order.NAME, pattern)
    assert (clients(answer, "wifi"), clients(answer, "ethernet")) == (wifi, ethernet)


def test_addresses_in_no_access_network_have_their_own_place(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, connection(1, subflow("192.0.2.1")))
    answer = busiest(snapshot, 10, Order.SENT, "")
    assert [(one["name"], len(one["clients"])) for one in answer["networks"]] == [
        ("wifi", 0),
        ("ethernet", 0),
        (None, 1),
    ]


def test_answer_stays_small_with_5000_connections(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, *map(client, range(1, 5000)))
    answer = busiest(snapshot, 10, Order.SENT, "")
    assert len(json.dumps(answer)) < 50_000
    assert answer["connections"] == 4999


def test_unknown_order_is_refused_with_those_allowed() -> None:
    with pytest.raises(UserError, match="'fastest': no such order; allowed: sent, received, subflows, name"):
        requested_order("fastest")
