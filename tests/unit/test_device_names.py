"""The names of devices stand wherever their addresses are shown, and are understood where addresses are."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

import pytest
from examples import ETHERNET, WIFI, connection, ends, subflow
from loops import LoopOnModels
from rich.console import Console
from worlds import ManualClock

from mptcp_throttle.cli import budget_tables, live_view, tables
from mptcp_throttle.errors import UserError
from mptcp_throttle.model import (
    AccessNetwork,
    Budget,
    Counting,
    Devices,
    Direction,
    Every,
    NamedClient,
    Per,
    RateKind,
    Stage,
)
from mptcp_throttle.proxies import ONE_PROXY
from mptcp_throttle.rpc import Json
from mptcp_throttle.rpc.wire import Order
from mptcp_throttle.units import Rate
from mptcp_throttle_web.hiding import Hider
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.history_rows import Account, Kind
from mptcp_throttled.accounting.ledger import Ledger
from mptcp_throttled.accounting.requested_accounts import requested_accounts, requested_path
from mptcp_throttled.answers import budgets, status
from mptcp_throttled.answers.busiest import IndexedClients, busiest
from mptcp_throttled.answers.client_index import ClientIndex
from mptcp_throttled.answers.explanation import explain
from mptcp_throttled.answers.subflow_counts import CountedSubflows
from mptcp_throttled.answers.view import View
from mptcp_throttled.control.requests import requested_address, requested_client
from mptcp_throttled.observing.enforcement import Difference, Enforcement
from mptcp_throttled.reporting import step_log
from mptcp_throttled.reporting.budget_events import budget_events
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.events import Event
from mptcp_throttled.vocabulary.observation import SocketState
from mptcp_throttled.vocabulary.operator import Override
from mptcp_throttled.vocabulary.traffic import SocketTotals

FIVE: Final = Rate.parse("5mbit")
ON_ETHERNET: Final = NamedClient("phone", (ip_network("10.1.0.2/32"), ip_network("10.1.0.9/32")), {RateKind.CAP: FIVE})
ON_WIFI: Final = NamedClient("phone", (ip_network("10.2.0.2/32"),))
TABLET: Final = NamedClient("tablet", (ip_network("10.1.0.30/32"),))
NETWORKS: Final = (
    replace(WIFI, devices=Devices((ON_WIFI,))),
    replace(ETHERNET, devices=Devices((ON_ETHERNET, TABLET))),
)
CONNECTIONS: Final = (
    connection(1, subflow("10.1.0.9"), subflow("10.2.0.2")),
    connection(2, subflow("10.1.0.3"), subflow("10.2.0.3")),
)
CAPPED: Final = ends("10.1.0.9")


@pytest.fixture
def running(tmp_path: Path) -> LoopOnModels:
    running = LoopOnModels(tmp_path, NETWORKS)
    running.show(*CONNECTIONS)
    return running


def view_of(running: LoopOnModels, enforcement: Enforcement | None = None) -> View:
    return View(running.loop.snapshot, enforcement or Enforcement(), {}, Now.of(running.clock))


def by_address(connections: Json) -> dict[str, str | None]:
    return {each["client"]: each["device"] for item in connections["connections"] for each in item["subflows"]}


def test_connections_name_devices(running: LoopOnModels, capsys: pytest.CaptureFixture[str]) -> None:
    answer = status.connections(view_of(running))
    assert by_address(answer) == {"10.1.0.9": "phone", "10.2.0.2": "phone", "10.1.0.3": None, "10.2.0.3": None}
    tables.show_connections(answer)
    shown = capsys.readouterr().out
    assert "10.1.0.9 40000 (phone)" in shown
    assert "10.1.0.3 40000 " in shown
    assert "wifi is live; cap: own rate of the device" in shown


def test_status_names_devices_with_own_rates_and_those_not_enforced(
    running: LoopOnModels, capsys: pytest.CaptureFixture[str]
) -> None:
    differences = {Direction.DOWNLINK: {CAPPED: Difference("sends more", -100.0)}}
    view = view_of(running, Enforcement(differences=differences))
    answer = status.status(view, CountedSubflows().of(view.snapshot), ("eth0",), {"problems": []})
    assert answer["daemon"]["not_enforced"] == ["client 10.1.0.9:40000 (phone): sends more"]
    wifi, ethernet = answer["networks"]
    assert [(each["client"], each["device"]) for each in ethernet["client_rates"]] == [("10.1.0.2", "phone")]
    assert (ethernet["device_count"], wifi["device_count"], wifi["client_rates"]) == (2, 1, [])
    tables.show_network(ethernet)
    assert "10.1.0.2 (phone)" in capsys.readouterr().out


def test_status_shows_all_rates_by_hand_and_only_the_first_of_many_devices(tmp_path: Path) -> None:
    devices = [NamedClient(f"d{n}", (ip_network(f"10.1.1.{n}/32"),), {RateKind.CAP: FIVE}) for n in range(200)]
    running = LoopOnModels(tmp_path, (WIFI, replace(ETHERNET, devices=Devices(tuple(devices)))))
    running.operator.set(Override("ethernet", RateKind.CAP, Rate(2_000_000), None, ip_address("10.1.1.199")))
    running.loop.step()
    view = view_of(running)
    _, ethernet = status.network_statuses(view, CountedSubflows().of(view.snapshot))
    assert (len(ethernet["client_rates"]), ethernet["more_client_rates"]) == (21, 179)
    assert ethernet["client_rates"][-1]["device"] == "d199"


def top(running: LoopOnModels, pattern: str, order: Order = Order.SENT) -> Json:
    view, index = view_of(running), ClientIndex()
    index.update(view.snapshot)
    return busiest(view, IndexedClients(index, CountedSubflows().of(view.snapshot)), 10, order, pattern)


def test_top_names_devices_finds_them_and_sorts_by_their_names(running: LoopOnModels) -> None:
    ethernet = top(running, "", Order.NAME)["networks"][1]
    assert [(each["client"], each["device"]) for each in ethernet["clients"]] == [
        ("10.1.0.3", None),
        ("10.1.0.2", "phone"),
    ]
    matching = top(running, "phone")
    assert [[each["device"] for each in network["clients"]] for network in matching["networks"]] == [["phone"]] * 2
    console = Console(width=200, file=StringIO())
    screen = live_view.render(matching, live_view.View(), live_view.Recent(), 200, problem=None, ascii_only=False)
    with console.capture() as captured:
        console.print(screen)
    assert "10.1.0.2 (phone)" in captured.get()


@pytest.mark.parametrize("client", ["phone", "10.1.0.2", "10.1.0.9", "10.2.0.2"])
def test_explain_takes_the_name_or_any_address(
    running: LoopOnModels, client: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = explain(view_of(running), requested_client(client, NETWORKS), None)
    assert (answer["client"], answer["device"]) == (client, "phone")
    assert [(each["name"], each["prefixes"]) for each in answer["networks"]] == [
        ("wifi", ["10.2.0.2"]),
        ("ethernet", ["10.1.0.2", "10.1.0.9"]),
    ]
    steps = answer["networks"][1]["downlink"]["cap"]
    assert [(step["rule"], step["rate"]) for step in steps] == [("configured", "1mbit"), ("device", "5mbit")]
    tables.show_explanation(answer)
    lines = capsys.readouterr().out.splitlines()
    assert "phone in ethernet: 10.1.0.2, 10.1.0.9" in lines
    assert "  cap: 5mbit (own rate of the device); otherwise 1mbit" in lines


def test_device_without_connections_is_explained_where_it_has_addresses(running: LoopOnModels) -> None:
    (network,) = explain(view_of(running), "tablet", None)["networks"]
    assert (network["name"], network["downlink"]["subflows"]) == ("ethernet", [])
    with pytest.raises(UserError, match="tablet: not in wifi, and no connection of it is known there"):
        explain(view_of(running), "tablet", "wifi")


def test_client_without_a_device_is_explained_as_before(running: LoopOnModels) -> None:
    answer = explain(view_of(running), ip_address("10.1.0.3"), "ethernet")
    assert answer["device"] is None
    assert answer["networks"][0]["prefixes"] == ["10.1.0.3"]


@pytest.mark.parametrize(
    ("client", "network", "address"),
    [("phone", "ethernet", "10.1.0.2"), ("phone", "wifi", "10.2.0.2"), ("10.1.0.9", "ethernet", "10.1.0.9")],
)
def test_rates_by_hand_may_be_set_for_a_name(client: str, network: str, address: str) -> None:
    assert requested_address(client, network, NETWORKS) == ip_address(address)


def test_rate_by_hand_for_a_name_is_that_of_all_its_addresses(
    running: LoopOnModels, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    client = requested_address("phone", "ethernet", NETWORKS)
    running.operator.set(Override("ethernet", RateKind.CAP, Rate(2_000_000), running.clock.now + 60, client))
    running.loop.step()
    assert running.loop.snapshot.throttled[CAPPED].throttle.rate == Rate(2_000_000)
    running.clock.now += 60
    running.loop.step()
    assert running.loop.snapshot.throttled[CAPPED].throttle.rate == FIVE
    assert "override of ethernet 10.1.0.2 (phone) cap expired" in caplog.text


@pytest.mark.parametrize(
    ("client", "network", "refusal"),
    [
        ("tablet", "wifi", "tablet: is in ethernet; allowed: a device with an address in wifi"),
        ("watch", "wifi", "client: 'watch': is not an address; allowed: .*, or the name of a device"),
        (5, "wifi", "client: 5: is not text; allowed: an address, or the name of a device"),
    ],
)
def test_client_that_is_no_device_there_is_refused_in_one_line(client: Json, network: str, refusal: str) -> None:
    with pytest.raises(UserError, match=refusal):
        requested_address(client, network, NETWORKS)


def test_log_and_decisions_name_devices(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    running = LoopOnModels(tmp_path, NETWORKS)
    running.show(*CONNECTIONS)
    assert " client=10.1.0.9:40000 device=phone network=ethernet direction=downlink " in caplog.text
    assert " client=10.1.0.3:40000 network=ethernet direction=downlink " in caplog.text
    decisions = running.loop.recent_decisions.latest(10)
    assert {(each["client"], each["device"]) for each in decisions} == {("10.1.0.9", "phone"), ("10.1.0.3", None)}
    event = step_log.enforcement_event({}, {CAPPED: "sends more"}, running.loop.snapshot)
    assert event is not None
    assert event.text == "1 subflows: rate not enforced; client=10.1.0.9:40000 device=phone: sends more"
    running.show()
    assert "free client=10.1.0.9:40000 device=phone network=ethernet" in caplog.text


def test_traffic_of_a_device_is_counted_in_all_networks_and_in_each(running: LoopOnModels, tmp_path: Path) -> None:
    history = History(tmp_path / "history.sqlite", "boot")
    accounts, snapshot = Accounts(history, Ledger({}, lambda: True), ManualClock()), running.loop.snapshot
    subflows = (CAPPED, ends("10.2.0.2"), ends("10.1.0.3"))
    for sent in (0, 1000):
        sockets = {each: SocketState(0, None, SocketTotals(sent), cookie=n) for n, each in enumerate(subflows, 1)}
        accounts.observe(sockets, snapshot, {})
    accounts.flush()
    sums = {each.name: each.ip_sent for each in history.top_clients(0, 10)}
    assert sums == {"phone": 2 * sums["10.1.0.3"], "10.1.0.3": sums["10.1.0.3"]}
    assert sums["phone"] > 0
    on_networks = {
        network: [
            period.traffic.ip_sent
            for account in requested_path("phone", network, running.loop.snapshot.networks, ONE_PROXY)
            for period in history.read(account, 3600, 0)
        ]
        for network in ("wifi", "ethernet")
    }
    assert on_networks == {"wifi": [sums["10.1.0.3"]], "ethernet": [sums["10.1.0.3"]]}


@pytest.mark.parametrize("name", ["phone", "10.1.0.9"])
def test_history_of_a_device_includes_what_its_addresses_had_before(name: str) -> None:
    accounts = requested_accounts(name, NETWORKS, ONE_PROXY)
    names = ["phone", "10.2.0.2", "10.1.0.2", "10.1.0.9"]
    assert accounts == [Account(Kind.CLIENT, each) for each in names]


def budgeted(network: AccessNetwork) -> AccessNetwork:
    stages = (Stage(1.0, {RateKind.CAP: Rate(256_000)}),)
    return replace(network, budgets=(Budget(1000, Per.CLIENT, Counting.BOTH, Every.MONTH, 1, 0.8, stages),))


@pytest.mark.parametrize("name", ["phone", "10.1.0.9", "10.2.0.2"])
def test_budgets_name_devices_and_are_found_by_name_or_any_address(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    running = LoopOnModels(tmp_path, tuple(map(budgeted, NETWORKS)))
    snapshot, ledger = running.show(*CONNECTIONS), Ledger({}, lambda: True)
    events: list[Event] = []
    accounts = Accounts(
        History(tmp_path / "history.sqlite", "boot"),
        ledger,
        running.clock,
        tell=lambda told: events.extend(budget_events(told, snapshot)),
    )
    for sent in (0, 400):
        subflows = enumerate((CAPPED, ends("10.1.0.2"), ends("10.1.0.3")), 1)
        sockets = {each: SocketState(0, None, SocketTotals(sent), cookie=n) for n, each in subflows}
        accounts.observe(sockets, running.show(connection(3, subflow("10.1.0.2")), *CONNECTIONS), {})
    owner = budgets.requested_owner(name, running.running.config)
    answer = budgets.describe(budgets.uses_of(accounts, owner), snapshot)
    of_ethernet, of_wifi = answer["budgets"]
    assert (of_wifi["network"], of_wifi["used"]) == ("wifi", 0)
    assert (of_ethernet["client"], of_ethernet["device"], of_ethernet["network"]) == ("10.1.0.2", "phone", "ethernet")
    other = next(use for use in accounts.budget_uses() if str(use.subject) == "10.1.0.3")
    assert of_ethernet["used"] == 2 * other.use.used
    budget_tables.show_budgets(answer)
    assert "10.1.0.2 (phone)" in capsys.readouterr().out
    assert any(event.text.startswith("ethernet 10.1.0.2 (phone): ") for event in events)


def test_owner_of_budgets_that_is_not_known_is_refused(running: LoopOnModels) -> None:
    with pytest.raises(
        UserError, match="'watch': no such network, device or address; allowed: wifi, ethernet, a device"
    ):
        budgets.requested_owner("watch", running.running.config)


def test_name_of_a_device_is_hidden_with_its_address() -> None:
    data = {
        "device": "phone",
        "client": "10.1.0.9",
        "line": "client 10.1.0.9:40000 (phone): override of 10.1.0.9 (phone)",
    }
    hidden = Hider().hidden(data)
    assert hidden["device"] is None
    assert "phone" not in str(hidden)
    assert hidden["line"] == f"client {hidden['client']}: override of {hidden['client']}"


def test_name_follows_the_files(running: LoopOnModels) -> None:
    def renamed(network: AccessNetwork) -> AccessNetwork:
        clients = tuple(replace(each, name="handset") for each in network.devices.clients if each.name == "phone")
        return replace(network, devices=Devices(clients))

    running.running.config = replace(running.running.config, networks=tuple(map(renamed, NETWORKS)))
    running.loop.step()
    assert by_address(status.connections(view_of(running)))["10.1.0.9"] == "handset"
