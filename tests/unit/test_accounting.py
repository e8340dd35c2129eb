"""Totals of closed subflows: sums per network and client, bounded, and values that do not change."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from examples import ETHERNET, WIFI, ends

from mptcp_throttle.model import Token
from mptcp_throttled import accounting
from mptcp_throttled.accounting import Accounts, ClosedSubflow, Totals

NETWORKS = (WIFI, ETHERNET)


def closed(client: str, acknowledged: int = 1000) -> ClosedSubflow:
    return ClosedSubflow(Token(1), ends(client), 20_000, acknowledged, 100, 10, 9, 1)


def test_totals_are_kept_per_network_and_client() -> None:
    accounts = Accounts().plus([closed("10.1.0.2"), closed("10.1.0.3", 500), closed("10.2.0.2")], NETWORKS)
    assert accounts.networks["ethernet"] == Totals(2, 1500, 200, 20, 18, 2)
    assert accounts.networks["wifi"] == Totals(1, 1000, 100, 10, 9, 1)
    assert {str(address) for address in accounts.clients} == {"10.1.0.2", "10.1.0.3", "10.2.0.2"}


def test_address_in_no_network_is_not_counted() -> None:
    assert Accounts().plus([closed("192.0.2.1")], NETWORKS) == Accounts()


def test_accounts_that_were_handed_out_do_not_change() -> None:
    one = Accounts().plus([closed("10.1.0.2")], NETWORKS)
    two = one.plus([closed("10.1.0.2")], NETWORKS)
    assert (one.networks["ethernet"].subflows, two.networks["ethernet"].subflows) == (1, 2)
    assert two.plus([], NETWORKS) is two


def test_number_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "MAX_CLIENTS", 2)
    accounts = Accounts().plus([closed(f"10.1.0.{number}") for number in range(1, 6)], NETWORKS)
    assert len(accounts.clients) == 2
    assert accounts.plus([closed("10.1.0.1")], NETWORKS).clients[ip_address("10.1.0.1")].subflows == 2
    assert accounts.networks["ethernet"].subflows == 5
