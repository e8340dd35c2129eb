"""What the ledger tells of budgets, as events."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import Final

from mptcp_throttle.model import Budget, Counting, Every, Per, RateKind, Stage
from mptcp_throttle.periods import Period
from mptcp_throttle.units import Rate
from mptcp_throttled.reporting.budget_events import budget_events
from mptcp_throttled.vocabulary.budgets import AccountKey, LevelReached, PeriodBegun, StagesEnded, Use
from mptcp_throttled.vocabulary.events import coalesced
from mptcp_throttled.vocabulary.snapshot import Snapshot

STAGES: Final = (
    Stage(0.75, {RateKind.CAP: Rate.parse("2mbit")}),
    Stage(1.0, {RateKind.CAP: Rate.parse("256kbit"), RateKind.LIMIT: Rate.parse("1mbit")}),
)
BUDGET: Final = Budget(5_000_000_000, Per.CLIENT, Counting.BOTH, Every.MONTH, 1, 0.5, STAGES)
KEY: Final = AccountKey("lte", BUDGET.key)
CLIENT: Final = ip_address("10.1.0.2")


def test_levels_of_a_client_are_told_with_what_is_used_and_what_applies() -> None:
    used = (2_600_000_000, 3_800_000_000, 5_020_000_000)
    told = budget_events(
        (LevelReached(KEY, BUDGET, CLIENT, Use(count), stage) for stage, count in enumerate(used)), Snapshot()
    )
    assert [(event.kind, event.text) for event in told] == [
        ("budget-warning", "lte 10.1.0.2: 2.6 GB used of the budget of 5 GB per client and month (52.0 %)"),
        (
            "budget-stage",
            "lte 10.1.0.2: 3.8 GB used of the budget of 5 GB per client and month (76.0 %): at most cap 2mbit",
        ),
        (
            "budget-spent",
            "lte 10.1.0.2: 5.02 GB used of the budget of 5 GB per client and month (100.4 %):"
            " at most cap 256kbit, limit 1mbit",
        ),
    ]
    assert {(event.network, event.client, event.rule) for event in told} == {("lte", "10.1.0.2", "budget")}


def test_budget_of_a_network_has_no_client_and_says_when_it_begins_again() -> None:
    budget = replace(BUDGET, per=Per.NETWORK)
    level, begun = budget_events(
        [LevelReached(KEY, budget, None, Use(5_000_000_000), 2), PeriodBegun(KEY, budget, Period(1, 2), 3)], Snapshot()
    )
    assert (level.client, level.network) == (None, "lte")
    assert begun.text.endswith("begins again; 3 are freed")
    assert (begun.kind, begun.until) == ("budget-began", 2)


def test_stage_of_a_rolling_budget_that_ends_is_told() -> None:
    rolling = replace(BUDGET, rolling=True)
    some, none = budget_events(
        (StagesEnded(KEY, rolling, CLIENT, Use(used), stages) for used, stages in ((4 * 10**9, 1), (10**9, 0))),
        Snapshot(),
    )
    assert (some.kind, some.text) == (
        "budget-eased",
        "lte 10.1.0.2: 4 GB used of the budget of 5 GB per client in 30 days (80.0 %): 1 of 2 stages",
    )
    assert none.text.endswith("(20.0 %): no stage any more")


def test_budgets_of_thousands_of_clients_at_one_moment_are_one_event() -> None:
    told = budget_events(
        (LevelReached(KEY, BUDGET, CLIENT + number, Use(5_000_000_000), 2) for number in range(50_000)), Snapshot()
    )
    (event,) = coalesced(told)
    assert event.more_events == 49_999
