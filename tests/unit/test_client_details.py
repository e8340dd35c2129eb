"""What the page shows of one client: its subflows on all networks, and what has changed for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples import ETHERNET, WIFI, cap, client, connection, subflow
from loops import LoopOnModels

from mptcp_throttle.proxies import ONE_PROXY
from mptcp_throttle.rpc import Json
from mptcp_throttle.units import Rate
from mptcp_throttled.answers import client_details
from mptcp_throttled.answers.client_list import ClientList
from mptcp_throttled.answers.explanation import explain
from mptcp_throttled.answers.view import View
from mptcp_throttled.control.requests import requested_client
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.locator import Locators


@pytest.fixture
def running(tmp_path: Path) -> LoopOnModels:
    return LoopOnModels(tmp_path, (WIFI, ETHERNET))


def shown(running: LoopOnModels, name: str) -> Json:
    view = View(running.loop.snapshot, Enforcement(), {}, Now.of(running.clock))
    networks, listed = view.snapshot.networks, ClientList(dict)
    listed.clients.update(view.snapshot)
    asked = requested_client(name, networks)
    known = client_details.find(listed.clients, asked, Locators(networks, ONE_PROXY))
    row = None if known is None else listed.describe(known, view)
    events = running.loop.events.after(None, 0, 0.0)["events"]
    return client_details.describe(
        view, name, known, row, explain(view, asked, None), running.loop.recent_decisions, events
    )


def steps(answer: Json, network: str) -> list[tuple[str | None, int | None, str | None]]:
    (found,) = (each["steps"] for each in answer["caps"] if each["network"] == network)
    return [(step["kind"], step["rate_bps"], step["rule"]) for step in found]


def test_client_has_its_subflows_on_all_networks_and_no_other(running: LoopOnModels) -> None:
    running.show(client(1), client(2))
    for name in ("10.1.0.1", "10.2.0.1"):
        answer = shown(running, name)
        assert answer["client"]["client"] == "10.2.0.1"
        assert {each["client"]: each["state"] for each in answer["subflows"]} == {"10.1.0.1": "cap", "10.2.0.1": "free"}
        assert {each["token"] for each in answer["subflows"]} == {"00000001"}
        assert {each["client"] for each in answer["decisions"]} == {"10.1.0.1"}
        assert [network["name"] for network in answer["explain"]["networks"]] == ["wifi", "ethernet"]


def test_rates_over_time_are_steps_that_end_with_the_present_one(running: LoopOnModels) -> None:
    running.show(client(1), client(2))
    assert steps(shown(running, "10.2.0.1"), "wifi") == [(None, None, None)]
    running.operator.set(cap("ethernet", Rate.parse("2mbit")))
    running.show(client(1), client(2))
    running.operator.reset("ethernet")
    running.show(connection(1, subflow("10.1.0.1")), client(2))
    answer = shown(running, "10.1.0.1")
    assert steps(answer, "ethernet") == [
        ("cap", 1_000_000, "configured"),
        ("cap", 2_000_000, "by hand"),
        (None, None, None),
    ]
    assert answer["caps"][0]["steps"][-1]["reason"] == "no live subflow on a more preferred network"


def test_network_keeps_its_rate_while_one_of_its_subflows_is_throttled(running: LoopOnModels) -> None:
    other = connection(2, subflow("10.1.0.1", 41000), subflow("10.2.0.1", 41000))
    running.show(client(1), other)
    running.show(connection(1, subflow("10.1.0.1")), other)
    assert steps(shown(running, "10.2.0.1"), "ethernet") == [("cap", 1_000_000, "configured")]


def test_client_without_live_subflows_still_has_its_past(running: LoopOnModels) -> None:
    running.show(client(1))
    running.show()
    answer = shown(running, "10.1.0.1")
    assert (answer["client"], answer["subflows"]) == (None, [])
    assert [decision["kind"] for decision in answer["decisions"]] == ["cap"]
