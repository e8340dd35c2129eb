"""Access networks in the answer to `status`, and as the CLI shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_network
from types import MappingProxyType

import pytest
from examples import ETHERNET, cap
from policy_oracle import as_configured

from mptcp_throttle.cli import tables
from mptcp_throttle.rpc import Json
from mptcp_throttle.units import Rate
from mptcp_throttled.accounting.accounts import NetworkAccounts
from mptcp_throttled.answers.status import network_statuses
from mptcp_throttled.answers.subflow_counts import SubflowCounts
from mptcp_throttled.answers.view import View
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.policy.terms import terms_of
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import Facts
from mptcp_throttled.vocabulary.traffic import Traffic


def status_with(subnets: int, accounts: Mapping[str, NetworkAccounts] = MappingProxyType({})) -> Json:
    many = tuple(ip_network(f"10.{number >> 8}.{number & 255}.0/24") for number in range(subnets))
    networks = (replace(ETHERNET, subnets=many),)
    snapshot = Snapshot(networks=networks, terms=as_configured(networks))
    (answer,) = network_statuses(View(snapshot, Enforcement(), accounts, Now(1000.0, 1.7e9)), SubflowCounts())
    return answer


def test_status_names_all_of_a_few_subnets(capsys: pytest.CaptureFixture[str]) -> None:
    answer = status_with(2)
    assert (answer["subnets"], answer["subnet_count"]) == (["10.0.0.0/24", "10.0.1.0/24"], 2)
    tables.show_network(answer)
    assert "10.0.0.0/24, 10.0.1.0/24 \n" in capsys.readouterr().out


def test_status_names_the_first_of_thousands_of_subnets(capsys: pytest.CaptureFixture[str]) -> None:
    answer = status_with(3000)
    assert (len(answer["subnets"]), answer["subnet_count"]) == (20, 3000)
    tables.show_network(answer)
    assert "  10.0.0.0/24, and 2999 more \n" in capsys.readouterr().out


def test_status_says_what_a_network_was_sent_throttled_and_held_back(capsys: pytest.CaptureFixture[str]) -> None:
    traffic = Traffic(ip_sent=2_000_000, ip_sent_throttled=1_250_000, held_back_ms=3210)
    answer = status_with(1, {"ethernet": NetworkAccounts(traffic)})
    assert (answer["totals"]["ip_sent_throttled"], answer["totals"]["held_back_ms"]) == (1_250_000, 3210)
    tables.show_network(answer)
    head, row = capsys.readouterr().out.splitlines()
    for column, value in (("sent throttled", "1.25 MB"), ("held back", "3.2 s")):
        assert row[head.index(column) :].startswith(value)


def test_status_lists_clients_with_rates_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    override = replace(cap("ethernet", Rate.parse("5mbit"), 1060.0), client=ip_address("fd00:1::2"))
    snapshot = Snapshot(networks=(ETHERNET,), terms=terms_of([ETHERNET], 1000.0, Facts((override,))))
    (answer,) = network_statuses(View(snapshot, Enforcement(), {}, Now(1000.0, 1.7e9)), SubflowCounts())
    (client,) = answer["client_rates"]
    present = client["rates"]["downlink"]["cap"]
    assert (client["client"], present["rate"], present["configured"]) == ("fd00:1::", "5mbit", "1mbit")
    assert (present["reason"], present["seconds_left"]) == ("by hand for this client", 60.0)
    assert answer["rates"]["downlink"]["cap"]["reason"] is None
    tables.show_network(answer)
    *_, head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["client", "network", "cap", "limit"]
    assert row.split()[:3] == ["fd00:1::", "ethernet", "5mbit"]
    assert "(by hand for this client, for 60 s; configured 1mbit)" in row
