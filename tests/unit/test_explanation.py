"""`explain`: what a client has on each access network, which rules say so, and what it would have without them."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import pytest
from examples import ETHERNET, WIFI, cap, connection, subflow
from loops import LoopOnModels

from mptcp_throttle.cli import tables
from mptcp_throttle.errors import UserError
from mptcp_throttle.model import Direction, RateKind, Window
from mptcp_throttle.rpc import Json
from mptcp_throttle.units import Rate
from mptcp_throttle.when import When
from mptcp_throttled.answers.explanation import explain
from mptcp_throttled.answers.view import View
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.fleet import WHOLE, RateKey, SharedRates
from mptcp_throttled.vocabulary.operator import Override

ALL_DAY: Final = Window(When.parse("00:00-24:00"), {RateKind.CAP: Rate.parse("512kbit")})
SCHEDULED: Final = replace(ETHERNET, schedule=(ALL_DAY,))
CONNECTIONS: Final = (
    connection(1, subflow("10.1.0.2"), subflow("10.2.0.2")),
    connection(2, subflow("10.1.0.2", 40001)),
    connection(3, subflow("10.1.0.3")),
)


@pytest.fixture
def running(tmp_path: Path) -> LoopOnModels:
    running = LoopOnModels(tmp_path, (WIFI, SCHEDULED))
    running.show(*CONNECTIONS)
    return running


def explained(running: LoopOnModels, address: str, network: str | None = None) -> Json:
    view = View(running.loop.snapshot, Enforcement(), {}, Now.of(running.clock))
    return explain(view, ip_address(address), network)


def shown(running: LoopOnModels, capsys: pytest.CaptureFixture[str], address: str, network: str | None) -> list[str]:
    tables.show_explanation(explained(running, address, network))
    return capsys.readouterr().out.splitlines()


def test_any_address_of_a_client_leads_to_all_its_networks(running: LoopOnModels) -> None:
    for address in ("10.1.0.2", "10.2.0.2"):
        assert [network["name"] for network in explained(running, address)["networks"]] == ["wifi", "ethernet"]


def test_rule_that_decides_and_what_it_replaces_are_named(
    running: LoopOnModels, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(running, capsys, "10.1.0.2", "ethernet") == [
        "ethernet, downloads: 512kbit for 1 subflow (wifi is live; cap: schedule 00:00-24:00), unlimited for 1 subflow"
        " (no live subflow on a more preferred network)",
        "  cap: 512kbit (schedule 00:00-24:00); otherwise 1mbit",
        "  limit: none (as configured)",
    ]


def test_each_rule_is_a_step_to_the_present_rate(running: LoopOnModels) -> None:
    running.operator.set(cap("ethernet", Rate.parse("5mbit"), end=running.clock.now + 60))
    running.show(*CONNECTIONS)
    (network,) = explained(running, "10.1.0.2", "ethernet")["networks"]
    steps = [(step["rule"], step["rate"], step["seconds_left"]) for step in network["downlink"]["cap"]]
    assert steps == [("configured", "1mbit", None), ("schedule", "512kbit", None), ("by hand", "5mbit", 60)]


def test_rate_by_hand_is_that_of_the_address_in_question(running: LoopOnModels) -> None:
    rate = Rate.parse("5mbit")
    running.operator.set(Override("ethernet", RateKind.CAP, rate, None, ip_address("10.1.0.3")))
    running.show(connection(1, subflow("10.1.0.2"), subflow("10.1.0.3"), subflow("10.2.0.2")))
    rates = {}
    for address in ("10.1.0.2", "10.1.0.3"):
        (network,) = explained(running, address, "ethernet")["networks"]
        rates[address] = network["downlink"]["cap"][-1]["rate"]
    assert rates == {"10.1.0.2": "512kbit", "10.1.0.3": "5mbit"}


def test_client_without_a_subflow_has_the_rates_of_its_network(
    running: LoopOnModels, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(running, capsys, "10.1.0.77", None)[0] == "ethernet, downloads: no subflow now"


@pytest.mark.parametrize(
    ("address", "network", "refused"),
    [
        ("192.0.2.1", None, "192.0.2.1: not in any access network, and no connection of it is known there"),
        ("10.1.0.3", "wifi", "10.1.0.3: not in wifi, and no connection of it is known there"),
        ("10.1.0.3", "lte", "'lte': no such access network; allowed: wifi, ethernet"),
    ],
)
def test_question_without_an_answer_is_refused(
    running: LoopOnModels, address: str, network: str | None, refused: str
) -> None:
    with pytest.raises(UserError) as caught:
        explained(running, address, network)
    assert str(caught.value) == refused


def test_part_of_this_proxy_of_shared_rates_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = RateKey("ethernet", ip_address("10.1.0.2"), Direction.DOWNLINK)
    shared = SharedRates(3, False, WHOLE // 100, 0, {key: WHOLE // 3})
    of_a_fleet = LoopOnModels(tmp_path, (WIFI, replace(ETHERNET, shared=True)), shared=shared)
    of_a_fleet.show(*CONNECTIONS)
    lines = shown(of_a_fleet, capsys, "10.1.0.2", "ethernet")
    assert "  of this client's shared rates, this proxy has 34.3 %" in lines
    wifi, ethernet = explained(of_a_fleet, "10.1.0.2")["networks"]
    assert (wifi["downlink"]["fleet_part"], ethernet["downlink"]["fleet_part"]) == (None, 0.343333)
    # One without a lease has the floor.
    (other,) = explained(of_a_fleet, "10.1.0.3")["networks"]
    assert other["downlink"]["fleet_part"] == 0.01
