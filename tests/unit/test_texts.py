"""What the CLI says where there is nothing to show."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from examples import ETHERNET, WIFI, connection, subflow
from loops import LoopOnModels, snapshot_of

from mptcp_throttle.cli import tables
from mptcp_throttle.cli.console import output_console
from mptcp_throttle.features import FeatureName
from mptcp_throttle.model import AccessNetwork, Token
from mptcp_throttle.rpc import Json
from mptcp_throttled.accounting.control_group import ComparedGroups, GroupSums
from mptcp_throttled.answers.status import connections, network_statuses, status
from mptcp_throttled.answers.subflow_counts import SubflowCounts
from mptcp_throttled.answers.view import View
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.control_group import EndedConnection
from mptcp_throttled.vocabulary.features import FeatureState
from mptcp_throttled.vocabulary.fleet import FleetState
from mptcp_throttled.vocabulary.snapshot import Snapshot, SnifferState

NOW = Now(1000.0, 1.7e9)


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        (None, "no MPTCP connections\n"),
        ("sniffer.sock: no [service] answers", "no connection is known: the sniffer does not answer: sniffer.sock: "),
    ],
)
def test_connections_say_why_there_is_none(problem: str | None, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = connections(View(Snapshot(sniffer=SnifferState("epoch", 1, problem)), Enforcement(), {}, NOW))
    tables.show_connections(answer)
    shown = capsys.readouterr().out
    assert shown.startswith(line)
    assert (problem or "") in shown


def test_connections_are_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = snapshot_of(tmp_path, connection(1, subflow("10.1.0.1"), subflow("10.2.0.1")))
    tables.show_connections(connections(View(snapshot, Enforcement(), {}, NOW)))
    assert "10.1.0.1 40000" in capsys.readouterr().out


def test_connection_that_has_lost_a_path_says_so_after_30_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = LoopOnModels(tmp_path)
    lone, joined = subflow("10.1.0.1"), subflow("10.2.0.1")
    running.show(connection(1, lone, joined))
    lost = running.clock.time()
    running.show(connection(1, lone))

    def answer(after: float) -> Json:
        running.clock.now += after
        return connections(View(running.loop.snapshot, Enforcement(), {}, Now.of(running.clock)))

    (early,) = answer(29)["connections"]
    assert early["one_path_since"] is None
    late = answer(1)
    assert late["connections"][0]["one_path_since"] == lost
    for since, form in ((lost, "%Y-%m-%d %H:%M"), (time.time() - 60, "%H:%M")):
        late["connections"][0]["one_path_since"] = since
        tables.show_connections(late)
        moment = time.strftime(form, time.localtime(since))
        assert f" one path since {moment}: the client must open a new subflow" in capsys.readouterr().out
    running.show(connection(1, lone, joined))
    tables.show_connections(answer(60))
    assert "one path" not in capsys.readouterr().out


def test_networks_of_proxies_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*networks: AccessNetwork) -> list[list[str]]:
        snapshot = replace(snapshot_of(tmp_path), networks=networks)
        answer = network_statuses(View(snapshot, Enforcement(), {}, NOW), SubflowCounts())
        assert [network["proxy"] for network in answer] == [network.proxy for network in networks]
        tables._show_networks(output_console(), answer)
        return [line.split()[:3] for line in capsys.readouterr().out.splitlines()]

    assert shown(WIFI, replace(ETHERNET, proxy="guests")) == [
        ["network", "proxy", "preference"],
        ["wifi", "all", "1"],
        ["ethernet", "guests", "2"],
    ]
    assert shown(WIFI)[0] == ["network", "preference", "cap"]


def shown_status(
    groups: ComparedGroups | None, capsys: pytest.CaptureFixture[str], fleet: FleetState | None = None
) -> str:
    snapshot = Snapshot(features=dict.fromkeys(FeatureName, FeatureState()))
    view = View(snapshot, Enforcement(), {}, NOW, groups, fleet=fleet)
    tables.show_status({**status(view, SubflowCounts(), ("eth0",), {"problems": []}), "capture": None})
    return " ".join(capsys.readouterr().out.split())


def group(number: int, *, with_cap: int) -> GroupSums:
    sums = GroupSums()
    for _ in range(number):
        sums = sums.plus(
            EndedConnection(Token(1), is_control=False, seconds=2.0, sent=4_000_000, sent_with_cap=with_cap)
        )
    return sums


def test_list_of_proxies_that_cannot_be_read_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    shown = shown_status(None, capsys, FleetState("proxy-1", "a:1", list_problem="is no hash"))
    assert "fleet: the list of proxies is no hash" in shown
    assert "list of proxies" not in shown_status(None, capsys, FleetState("proxy-1", "a:1"))


def test_control_group_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    shown = shown_status(ComparedGroups(0.015, group(100, with_cap=500_000), group(30, with_cap=2_000_000)), capsys)
    assert "control group (1.5%)" in shown
    assert "ended connections 100 30" in shown
    assert "on networks with a cap, each 0.50 MB 2.00 MB -1.50 to -1.50 MB" in shown
    assert "on networks with a cap, of all bytes 12.50 % 50.00 % -37.50 to -37.50 %" in shown
    assert "rate of downloads from 1 MB on 16.00 Mb/s 16.00 Mb/s +0.00 to +0.00 Mb/s" in shown


def test_small_control_group_says_that_it_is_too_small(capsys: pytest.CaptureFixture[str]) -> None:
    shown = shown_status(ComparedGroups(0.01, group(100, with_cap=500_000)), capsys)
    assert "0.50 MB - not enough connections yet: 30 in each group" in shown


def test_without_a_control_group_nothing_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert "control group" not in shown_status(None, capsys)
