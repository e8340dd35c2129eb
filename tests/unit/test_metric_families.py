"""The metrics: what they count, and that their number and labels depend on the access networks alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from examples import client, connection, subflow
from loops import snapshot_of
from worlds import configuration

from mptcp_throttle.model import Budget, Connection, Counting, Every, Per, RateKind, Stage, Token
from mptcp_throttle.policy_bundle.bundle import PolicyVersion
from mptcp_throttle.policy_bundle.kept_policy import KeptPolicy
from mptcp_throttle.rpc import Json, RpcError
from mptcp_throttle.units import Rate
from mptcp_throttled.accounting.accounts import NetworkAccounts
from mptcp_throttled.accounting.budget_account import BudgetTotals
from mptcp_throttled.accounting.control_group import ComparedGroups, GroupSums
from mptcp_throttled.accounting.history_rows import ClientSums
from mptcp_throttled.answers.metrics.families import MetricFamilies
from mptcp_throttled.answers.metrics.server import Exposition
from mptcp_throttled.answers.view import View
from mptcp_throttled.control.running_config import RunningConfig
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.reporting.instruments import NAMESPACE
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.control_group import EndedConnection
from mptcp_throttled.vocabulary.fleet import FleetState, KnownProxy, LeaseState, Load, SharedRates
from mptcp_throttled.vocabulary.traffic import Traffic

REFERENCE: Final = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text(encoding="utf-8")
ACCOUNTS: Final = {
    "wifi": NetworkAccounts(
        Traffic(
            ip_sent=1000,
            ip_sent_throttled=300,
            ip_received=20,
            retransmitted=7,
            rtt_seconds=0.5,
            rtt_samples=3,
            held_back_ms=1250,
        ),
        (0, 1, 0, 2, 0, 0, 0, 0, 0, 0),
    )
}
GROUPS: Final = ComparedGroups(
    0.01,
    GroupSums().plus(EndedConnection(Token(1), is_control=False, seconds=1.0, sent=10, sent_with_cap=4)),
    GroupSums().plus(EndedConnection(Token(2), is_control=True, seconds=1.0, sent=9, sent_with_cap=8)),
)
BUDGET: Final = Budget(
    5 * 10**9,
    Per.CLIENT,
    Counting.BOTH,
    Every.MONTH,
    1,
    0.8,
    (Stage(0.75, {RateKind.CAP: Rate(512_000)}), Stage(1.0, {RateKind.CAP: Rate(256_000)})),
)
OF_DEVICE: Final = replace(BUDGET, stages=BUDGET.stages[:1], networks=("ethernet", "wifi"))
BUDGETS: Final = [
    BudgetTotals("ethernet", BUDGET, 12 * 10**9, (3, 1)),
    BudgetTotals("phone", OF_DEVICE, 10**9, (1,)),
    BudgetTotals("tablet", replace(OF_DEVICE, stages=BUDGET.stages), 2 * 10**9, (1, 1)),
]
HEARD: Final = {"proxy-1": 3.0, "proxy-2": -1.0, "proxy-3": -20.0, "proxy-4": -597.0}
KNOWN: Final = {name: KnownProxy(heard, 3.0, "1.0.0", Load()) for name, heard in HEARD.items()}
FLEET: Final = FleetState("proxy-1", None, "does not answer", 3.0, KNOWN, 7, list_problem="is no hash")
LEASES: Final = LeaseState(None, 5, SharedRates(3, False, 10**7))
POLICY: Final = KeptPolicy(Path("/x"), PolicyVersion(7, "ab", 1, "alice"), "europe", 2.0)
SNIFFER: Final = {"dropped": 3, "counters": {"connections_not_tracked": 4}, "kernel_view": {"unlisted": "a problem"}}
Values = dict[tuple[str, ...], float]


class Metrics:
    """The metrics after one step of a loop for these connections."""

    def __init__(
        self,
        directory: Path,
        *connections: Connection,
        paused: bool = False,
        sniffer: Callable[[], Json] = lambda: SNIFFER,
        clients: list[ClientSums] | None = None,
    ) -> None:
        snapshot = snapshot_of(directory, *connections, paused=paused)
        self.families = MetricFamilies(
            RunningConfig(replace(configuration(), policy=POLICY), 1000.0),
            lambda: View(snapshot, Enforcement(), ACCOUNTS, Now(10.0, 0.0), GROUPS, fleet=FLEET, leases=LEASES),
            sniffer,
            lambda: BUDGETS,
            None if clients is None else lambda: clients,
        )

    def values(self, name: str) -> Values:
        """The samples of that name, by the values of their labels."""
        return {
            tuple(sample.labels.values()): sample.value
            for family in self.families.collect()
            for sample in family.samples
            if sample.name == f"{NAMESPACE}_{name}"
        }

    def series(self) -> set[tuple[str, ...]]:
        """All samples of the daemon: names and labels."""
        exposition = Exposition(self.families)
        return {
            (sample.name, *map(str, sample.labels.items())) for one in exposition.collect() for sample in one.samples
        }


def test_subflows_are_counted_by_network_and_decision(tmp_path: Path) -> None:
    lonely = connection(9, subflow("10.1.0.9"))
    waiting = connection(8, subflow("10.2.0.8"), subflow("10.1.0.8", backup=True))
    metrics = Metrics(tmp_path, client(1), lonely, waiting, connection(7, subflow("192.0.2.7")))
    found = {labels: count for labels, count in metrics.values("subflows").items() if count}
    assert found == {
        ("ethernet", "cap"): 1,
        ("ethernet", "free"): 1,
        ("ethernet", "backup"): 1,
        ("wifi", "free"): 2,
        ("none", "free"): 1,
    }
    assert metrics.values("connections") == {("single",): 2, ("multi",): 2}


def test_exchange_of_totals_is_shown_with_its_age(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    names = ("fleet_ready", "fleet_age_seconds", "fleet_refused_total", "fleet_list_ready")
    assert [metrics.values(name)[()] for name in names] == [0, 7, 7, 0]


def test_proxies_are_counted_by_their_presence(tmp_path: Path) -> None:
    # As of when they were looked for: that the server is away since says nothing of other proxies.
    assert Metrics(tmp_path).values("fleet_proxies") == {("reachable",): 2, ("late",): 1, ("gone",): 1}


def test_leases_are_counted(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    assert [metrics.values(name)[()] for name in ("leases_ready", "leases")] == [1, 5]


def test_policy_in_use_is_shown_by_its_number(tmp_path: Path) -> None:
    assert Metrics(tmp_path).values("policy_number") == {(): 7}


def test_budgets_are_shown_as_a_whole(tmp_path: Path) -> None:
    metrics, labels = Metrics(tmp_path), ("ethernet", "client", "both", "month")
    devices = ("none", "device", *labels[2:])
    assert metrics.values("budget_bytes") == {labels: 5e9, devices: 10e9}
    assert metrics.values("budget_used_bytes") == {labels: 12e9, devices: 3e9}
    assert metrics.values("budget_stage_reached") == {
        (*labels, "1"): 3,
        (*labels, "2"): 1,
        (*devices, "1"): 2,
        (*devices, "2"): 1,
    }


def test_bytes_rtts_and_times_held_back_are_those_of_the_accounts(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    sent = metrics.values("sent_bytes_total")
    assert (sent["wifi", "true"], sent["wifi", "false"], sent["ethernet", "false"]) == (300, 700, 0)
    assert metrics.values("received_bytes_total")["wifi",] == 20
    assert metrics.values("retransmitted_bytes_total")["wifi",] == 7
    assert metrics.values("held_back_seconds_total") == {("wifi",): 1.25, ("ethernet",): 0}
    buckets = metrics.values("rtt_seconds_bucket")
    assert [buckets["wifi", bound] for bound in ("0.005", "0.01", "0.025", "0.05", "+Inf")] == [0, 1, 1, 3, 3]
    assert metrics.values("rtt_seconds_sum")["wifi",] == 0.5
    assert metrics.values("rate_bytes_per_second") == {("ethernet", "downlink", "cap"): 125_000}  # no other rate


def test_control_group_metrics_are_those_of_the_comparison(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    assert metrics.values("ended_connections_total") == {("capped",): 1, ("control",): 1}
    assert metrics.values("ended_connections_sent_bytes_total") == {
        ("capped", "true"): 4,
        ("capped", "false"): 6,
        ("control", "true"): 8,
        ("control", "false"): 1,
    }


@pytest.mark.parametrize("paused", [False, True])
def test_paused_metric_follows_the_pause(tmp_path: Path, paused: bool) -> None:
    metrics = Metrics(tmp_path, client(1), paused=paused)
    assert metrics.values("paused") == {(): paused}
    assert metrics.values("subflows")["ethernet", "cap"] == (not paused)


def test_sniffer_counters_are_absent_while_it_does_not_answer(tmp_path: Path) -> None:
    def refuse() -> Json:
        raise RpcError("sniffer.sock: no answer")

    assert Metrics(tmp_path).values("capture_dropped_packets_total") == {(): 3}
    assert Metrics(tmp_path).values("table_full_total") == {("connections",): 4, ("half_open",): 0}
    assert Metrics(tmp_path).values("connections_elsewhere") == {(): 1}
    fine = {**SNIFFER, "kernel_view": {"unlisted": None}}
    assert Metrics(tmp_path, sniffer=lambda: fine).values("connections_elsewhere") == {(): 0}
    assert Metrics(tmp_path, sniffer=refuse).values("capture_dropped_packets_total") == {}


def test_series_do_not_depend_on_clients_and_identify_none(tmp_path: Path) -> None:
    few, many = Metrics(tmp_path, client(1)).series(), Metrics(tmp_path, *map(client, range(2000))).series()
    assert few == many
    assert len(few) <= 86 + 30 * 2
    assert not re.search(r"10\.[12]\.|40000|00000001", " ".join(" ".join(series) for series in few))


def test_busiest_clients_have_metrics_only_if_configured(tmp_path: Path) -> None:
    assert Metrics(tmp_path).values("client_sent_bytes") == {}
    metrics = Metrics(tmp_path, clients=[ClientSums("10.1.0.1", 5, 2, 1500), ClientSums("fd00:1::/64", 3, 0, 0)])
    assert metrics.values("client_sent_bytes") == {("10.1.0.1",): 5, ("fd00:1::/64",): 3}
    assert metrics.values("client_sent_throttled_bytes") == {("10.1.0.1",): 2, ("fd00:1::/64",): 0}
    assert metrics.values("client_held_back_seconds") == {("10.1.0.1",): 1.5, ("fd00:1::/64",): 0}


def test_documented_metrics_are_those_that_exist(tmp_path: Path) -> None:
    rows = re.findall(rf"^\| `{NAMESPACE}_(\w+)` \| (\w+) \| (.*?) \| (.*) \|$", REFERENCE, re.MULTILINE)
    documented = {
        (name, kind, tuple(sorted(re.findall(r"`(\w+)`", labels))), text) for name, kind, labels, text in rows
    }
    existing: set[tuple[str, str, tuple[str, ...], str]] = set()
    for family in Exposition(
        Metrics(tmp_path, client(1), clients=[ClientSums("10.1.0.1", 5, 2, 1500)]).families
    ).collect():
        if not family.name.startswith("process_"):
            name = family.name.removeprefix(f"{NAMESPACE}_") + ("_total" if family.type == "counter" else "")
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            existing.add((name, family.type, tuple(sorted(labels)), family.documentation))
    assert documented == existing
