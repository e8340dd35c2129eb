"""The answer to `clients`: who is in it, in which order, and with which rates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from examples import client, connection, ends, subflow
from loops import snapshot_of

from mptcp_throttle.errors import UserError
from mptcp_throttle.rpc import Json
from mptcp_throttled.answers.client_list import ClientList, Wanted
from mptcp_throttled.answers.view import View
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.snapshot import Snapshot

OBSERVED = Enforcement(
    rates={ends("10.1.0.1"): 62_500.0, ends("10.2.0.1"): 1e6, ends("10.2.0.2"): 5e6, ends("10.2.0.3"): 2e6},
    received_rates={ends("10.2.0.1"): 7e6},
)
HELD = {"10.1.0.1": 30, "10.1.0.2": 40, "10.2.0.1": 8, "10.9.9.9": 1000}


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return snapshot_of(tmp_path, client(1), client(2), connection(3, subflow("10.2.0.3"), subflow("10.2.0.3", 41000)))


def asked(snapshot: Snapshot, **how: Json) -> Json:
    wanted = {"number": 10, "start": 0, "order": "sent", "search": "", "network": "", "rule": "", **how}
    view = View(snapshot, OBSERVED, {}, Now(1000.0, 1.7e9))
    return ClientList(lambda: HELD).answer(view, Wanted.of(**wanted))


def names(answer: Json) -> list[str]:
    return [each["client"] for each in answer["clients"]]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("sent", ["10.2.0.2", "10.2.0.3", "10.2.0.1"]),
        ("received", ["10.2.0.1", "10.2.0.2", "10.2.0.3"]),
        ("name", ["10.2.0.1", "10.2.0.2", "10.2.0.3"]),
        ("held", ["10.2.0.2", "10.2.0.1", "10.2.0.3"]),
    ],
)
def test_clients_are_in_the_order_asked_for(snapshot: Snapshot, order: str, expected: list[str]) -> None:
    assert names(asked(snapshot, order=order)) == expected
    assert names(asked(snapshot, order=order, number=1, start=1)) == expected[1:2]


RULES = "configured, schedule, device, overflow, budget, by hand, fleet, free"


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"search": "10.1.0.2"}, ["10.2.0.2"]),
        ({"search": "nobody"}, []),
        ({"network": "ethernet"}, ["10.2.0.2", "10.2.0.1"]),
        ({"rule": "configured"}, ["10.2.0.2", "10.2.0.1"]),
        ({"rule": "free", "search": "0.3"}, ["10.2.0.3"]),
        ({"rule": "by hand"}, []),
    ],
)
def test_only_clients_that_match_are_counted(snapshot: Snapshot, how: dict[str, str], expected: list[str]) -> None:
    answer = asked(snapshot, **how)
    assert names(answer) == expected
    assert (answer["matching"], answer["total"]) == (len(expected), 3)


def test_client_has_its_networks_with_rate_rule_and_reason(snapshot: Snapshot) -> None:
    (client_1,) = asked(snapshot, search="10.2.0.1")["clients"]
    assert {key: value for key, value in client_1.items() if key != "networks"} == {
        "client": "10.2.0.1",
        "device": None,
        "sent_bps": 8_500_000,
        "received_bps": 56_000_000,
        "connections": 1,
        "subflows": 2,
        "throttled_subflows": 1,
        "held_back_ms": 38,
    }
    wifi, ethernet = client_1["networks"]
    assert (wifi["name"], wifi["client"], wifi["sent_bps"], wifi["kind"]) == ("wifi", "10.2.0.1", 8_000_000, None)
    assert (ethernet["name"], ethernet["client"], ethernet["sent_bps"]) == ("ethernet", "10.1.0.1", 500_000)
    assert (ethernet["kind"], ethernet["rate"], ethernet["rule"]) == ("cap", "1mbit", "configured")
    assert ethernet["reason"] == "wifi is live"


def test_cap_of_a_client_is_that_of_its_least_preferred_network(snapshot: Snapshot) -> None:
    clients, view = ClientList(lambda: HELD), View(snapshot, OBSERVED, {}, Now(1000.0, 1.7e9))
    cap = {"network": "ethernet", "rate_bps": 1_000_000, "rule": "configured", "reason": "wifi is live", "until": None}
    assert clients.cap_of("10.2.0.1", view) == clients.cap_of("10.1.0.1", view) == cap
    assert clients.cap_of("10.2.0.3", view) == clients.cap_of("10.9.9.9", view) == dict.fromkeys(cap)


def test_no_client_is_described_when_none_is_asked_for(snapshot: Snapshot) -> None:
    answer = asked(snapshot, number=0)
    assert (answer["total"], answer["matching"], answer["clients"]) == (3, 3, [])
    assert answer["on_networks"] == [{"name": "ethernet", "clients": 2}, {"name": "wifi", "clients": 3}]


def test_answer_is_small_however_many_connections_there_are(tmp_path: Path) -> None:
    many = snapshot_of(tmp_path, *(client(number) for number in range(1, 400)))
    answer = asked(many, number=20)
    assert (answer["total"], len(answer["clients"])) == (399, 20)
    assert len(json.dumps(answer)) < 20 * 1200


@pytest.mark.parametrize(
    ("how", "allowed"),
    [
        ({"number": -1}, "number: -1: allowed: a whole number from 0 on"),
        ({"start": True}, "start: true: allowed: a whole number from 0 on"),
        ({"order": "size"}, "order: 'size': allowed: sent, received, subflows, name, held"),
        ({"search": 1}, "search: 1: allowed: text"),
        ({"rule": "none"}, f"rule: 'none': allowed: {RULES}"),
    ],
)
def test_bad_argument_is_refused_with_what_is_allowed(snapshot: Snapshot, how: dict[str, Json], allowed: str) -> None:
    with pytest.raises(UserError) as refused:
        asked(snapshot, **how)
    assert str(refused.value).startswith(allowed)
