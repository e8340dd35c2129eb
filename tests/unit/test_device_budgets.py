"""Budgets of devices: one for what a device carries in several networks, which narrows its rates in all of them."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Final

import pytest
from examples import ETHERNET, WIFI, cap
from worlds import ManualClock, configuration

from mptcp_throttle.cli.budget_tables import explained_budget, show_budgets
from mptcp_throttle.errors import UserError
from mptcp_throttle.model import (
    AccessNetwork,
    Budget,
    Counting,
    Devices,
    Every,
    NamedClient,
    Per,
    RateKind,
    Stage,
    Window,
)
from mptcp_throttle.units import Rate
from mptcp_throttle.when import When
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.ledger import Carried, Choice, Ledger
from mptcp_throttled.answers import budgets
from mptcp_throttled.policy.terms import terms_of
from mptcp_throttled.reporting.budget_events import budget_events
from mptcp_throttled.vocabulary.budgets import Addition
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import Facts, RuleName, WallClock

if TYPE_CHECKING:
    from pathlib import Path

SLOW: Final = Rate.parse("256kbit")
BUDGET: Final = Budget(
    *(1000, Per.CLIENT, Counting.BOTH, Every.MONTH, 1, 0.8, (Stage(1.0, {RateKind.CAP: SLOW, RateKind.LIMIT: SLOW}),)),
    networks=("wifi", "ethernet"),
)
OF_ALL: Final = replace(BUDGET, networks=(), amount=5000)
PHONE: Final = ip_address("10.1.0.2"), ip_address("10.2.0.2")
OTHER: Final = ip_address("10.1.0.3")
AT: Final = 1.7e9


def networks_with(*own: Budget, schedule: tuple[Window, ...] = ()) -> tuple[AccessNetwork, ...]:
    """Wi-Fi, and Ethernet with a budget of each client; the phone has addresses in both."""
    on_ethernet = NamedClient("phone", (ip_network("10.1.0.2/32"), ip_network("10.1.0.9/32")), {}, own)
    on_wifi = NamedClient("phone", (ip_network("10.2.0.2/32"),), {}, own)
    return (
        replace(WIFI, devices=Devices((on_wifi,))),
        replace(ETHERNET, devices=Devices((on_ethernet,)), budgets=(OF_ALL,), schedule=schedule),
    )


def ledger_of(*own: Budget, schedule: tuple[Window, ...] = ()) -> Ledger:
    ledger = Ledger({}, lambda: True)
    ledger.configure(networks_with(*own, schedule=schedule), None, AT)
    return ledger


def carried(network: str, client: object, sent: int) -> Carried:
    return Carried(network, client, sent, 0, is_mptcp=True)  # type: ignore[arg-type]


def test_device_uses_its_budget_in_all_its_networks_and_others_do_not() -> None:
    ledger = ledger_of(BUDGET)
    on_ethernet, on_wifi = PHONE
    told = ledger.count([carried("ethernet", on_ethernet, 600), carried("ethernet", OTHER, 900)], AT, 1.0)
    assert (told, ledger.spent) == ([], {})
    (spent,) = ledger.count([carried("wifi", on_wifi, 500)], AT, 1.0)
    (event,) = budget_events([spent], Snapshot())
    assert event.text == (
        "device phone: 1.1 kB used of the budget of 1 kB per month in wifi, ethernet (110.0 %): at most cap 256kbit,"
        " limit 256kbit"
    )
    assert {name: [*by_subject] for name, by_subject in ledger.spent.items()} == {
        "ethernet": [on_ethernet],
        "wifi": [on_wifi],
    }
    by_owner = {(use.owner, use.subject): use.use.used for use in ledger.uses(AT)}
    assert by_owner == {("phone", None): 1100, ("ethernet", on_ethernet): 600, ("ethernet", OTHER): 900}


def test_spent_budget_narrows_the_device_alone_and_by_hand_is_last() -> None:
    ledger, networks = ledger_of(BUDGET), networks_with(BUDGET)
    ledger.count([carried("wifi", PHONE[1], 1000)], AT, 1.0)
    facts = Facts(spent=ledger.spent, wall_clock=WallClock(AT))
    terms = terms_of(networks, 0.0, facts)
    assert RateKind.LIMIT not in terms.rates["wifi"]
    for name, first in zip(("ethernet", "wifi"), PHONE, strict=True):
        assert terms.client_rates[name, first][RateKind.LIMIT] == SLOW
        assert terms.by_client[name, first][RateKind.LIMIT].rule is RuleName.BUDGET
    by_hand = terms_of(networks, 0.0, facts._replace(overrides=(cap("ethernet", Rate(8_000_000)),)))
    assert by_hand.by_client["ethernet", PHONE[0]][RateKind.CAP].rule is RuleName.BY_HAND


def test_network_can_have_the_rates_that_a_budget_of_a_device_has() -> None:
    wifi, _ = networks_with(BUDGET)
    assert wifi.kinds - WIFI.kinds == {RateKind.CAP, RateKind.LIMIT} - WIFI.kinds
    assert RateKind.LIMIT in wifi.kinds


def test_free_window_of_one_network_counts_nothing_there() -> None:
    free = Window(When.parse("Mon..Sun"), {}, counts=False)
    ledger = ledger_of(BUDGET, schedule=(free,))
    ledger.count([carried("ethernet", PHONE[0], 600), carried("wifi", PHONE[1], 100)], AT, 1.0)
    (use,) = (use for use in ledger.uses(AT) if use.budget.networks)
    assert (use.use.used, use.free) == (100, None)


def test_budget_that_moves_to_other_networks_keeps_its_count() -> None:
    ledger = ledger_of(BUDGET)
    ledger.count([carried("ethernet", PHONE[0], 1000)], AT, 1.0)
    ledger.configure(networks_with(replace(BUDGET, networks=("ethernet",))), None, AT)
    assert list(ledger.spent) == ["ethernet"]
    ledger.configure(networks_with(), None, AT)
    assert ledger.spent == {}


def test_name_means_a_budget_of_the_device_and_an_address_of_the_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    networks = networks_with(BUDGET)
    config, ledger = configuration(networks), Ledger({}, lambda: True)
    accounts = Accounts(History(tmp_path / "history.sqlite", "boot"), ledger, ManualClock())
    accounts.observe({}, Snapshot(networks=networks), {})
    by_name, by_address = (budgets.requested_owner(name, config) for name in ("phone", "10.1.0.9"))
    budgets.add(accounts, by_name, Choice(), Addition(500, 500, None))
    budgets.set_used(accounts, by_address, Choice(), 700)
    answer = budgets.describe(budgets.uses_of(accounts, by_name), Snapshot(networks=networks))
    of_client, of_device = answer["budgets"]
    assert (of_device["per"], of_device["network"], of_device["networks"]) == ("device", None, ["wifi", "ethernet"])
    assert (of_device["device"], of_device["client"], of_device["left"]) == ("phone", None, 1500)
    assert (of_client["per"], of_client["used"], of_client["client"]) == ("client", 700, "10.1.0.2")
    show_budgets(answer)
    assert "wifi, ethernet" in capsys.readouterr().out
    assert explained_budget(of_device, None).startswith("0 B of 1 kB of this device in wifi and ethernet used")
    budgets.reset(accounts, by_name, Choice())
    assert {use.use.used for use in accounts.budget_uses()} == {0}
    with pytest.raises(UserError, match="phone: has no budget for each day"):
        budgets.set_used(accounts, by_name, Choice(Every.DAY), 1)
