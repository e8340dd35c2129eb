"""The rule of budgets: stages narrow the rates of a network or of a client, and their end frees them."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import Final
from zoneinfo import ZoneInfo

from examples import ETHERNET, WIFI, cap
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttle.model import Budget, Counting, Every, Per, RateKind, Stage, Window
from mptcp_throttle.units import Rate
from mptcp_throttle.when import When
from mptcp_throttled.policy.terms import terms_of
from mptcp_throttled.vocabulary.budgets import Reached, Spent, Subject
from mptcp_throttled.vocabulary.terms import Facts, PresentTerms, RuleName, Term, WallClock

CLIENT: Final = ip_address("10.1.0.7")
SLOW, FAST = Rate.parse("256kbit"), Rate.parse("5mbit")
CONFIGURED: Final = ETHERNET.rates[RateKind.CAP]
BUDGET: Final = Budget(5 * 10**9, Per.CLIENT, Counting.BOTH, Every.MONTH, 1, None, (Stage(1.0, {RateKind.CAP: SLOW}),))
EPOCH: Final = 1.7e9
NOW: Final = 1000.0
REASON: Final = "5 GB per month used"


def terms(
    *reached: tuple[Subject, Stage], until: float | None = EPOCH + 5000, network: object = ETHERNET, now: float = NOW
) -> PresentTerms:
    spent: dict[Subject, tuple[Reached, ...]] = {}
    for subject, stage in reached:
        spent[subject] = (*spent.get(subject, ()), Reached(replace(BUDGET, stages=(stage,)), 1, until))
    facts = Facts(wall_clock=WallClock(EPOCH, ZoneInfo("UTC")), spent={"ethernet": spent})
    return terms_of((WIFI, network), now, facts)  # type: ignore[arg-type]


def test_spent_budget_narrows_the_rates_of_its_client_alone() -> None:
    present = terms((CLIENT, BUDGET.stages[0]))
    assert present.rates["ethernet"][RateKind.CAP] == CONFIGURED
    assert present.by_client["ethernet", CLIENT][RateKind.CAP] == Term(SLOW, REASON, 5000, RuleName.BUDGET)


def test_spent_budget_of_a_network_narrows_the_rates_of_all() -> None:
    present = terms((None, BUDGET.stages[0]))
    assert present.by_network["ethernet"][RateKind.CAP].rate == SLOW
    assert present.by_client == {}


def test_stage_is_no_rate_where_the_present_one_is_lower() -> None:
    present = terms((None, Stage(1.0, {RateKind.CAP: FAST, RateKind.UPLINK_LIMIT: FAST})))
    assert present.rates["ethernet"] == {RateKind.CAP: CONFIGURED, RateKind.UPLINK_LIMIT: FAST}
    assert present.by_network["ethernet"][RateKind.CAP].rule is RuleName.CONFIGURED


def test_rates_are_free_when_the_period_ends_whoever_has_noticed() -> None:
    assert terms((None, BUDGET.stages[0]), now=4999).rates["ethernet"][RateKind.CAP] == SLOW
    ended = terms((None, BUDGET.stages[0]), now=5000)
    assert ended.rates["ethernet"][RateKind.CAP] == CONFIGURED
    assert ended.next_change is None
    assert terms((None, BUDGET.stages[0]), until=None, now=9000).rates["ethernet"][RateKind.CAP] == SLOW


def test_window_that_does_not_count_is_not_narrowed_until_it_ends() -> None:
    # Seconds since the epoch 1 700 001 000: 22:30 of a Tuesday in UTC.
    free = Window(When.parse("22:00-23:00"), {RateKind.CAP: None}, counts=False)
    network = replace(ETHERNET, schedule=(free,))
    during = terms((CLIENT, BUDGET.stages[0]), until=None, network=network)
    assert RateKind.CAP not in during.rates["ethernet"]
    assert during.by_client == {}
    later = terms((CLIENT, BUDGET.stages[0]), until=None, network=network, now=NOW + 3600)
    assert later.client_rates["ethernet", CLIENT][RateKind.CAP] == SLOW


def test_rate_by_hand_replaces_a_spent_budget() -> None:
    spent: Spent = {"ethernet": {None: (Reached(BUDGET, 1, None),)}}
    present = terms_of((WIFI, ETHERNET), NOW, Facts((cap("ethernet", FAST),), spent=spent))
    assert present.rates["ethernet"][RateKind.CAP] == FAST


RATES: Final = st.integers(1000, 10**9).map(lambda bits: Rate(bits // 8 * 8))
STAGES: Final = st.dictionaries(st.sampled_from(list(RateKind)), RATES, min_size=1).map(lambda rates: Stage(1.0, rates))


@given(st.lists(st.tuples(st.sampled_from([None, CLIENT]), STAGES), max_size=5))
def test_budgets_only_narrow_and_the_narrowest_wins(reached: list[tuple[Subject, Stage]]) -> None:
    free, present, key = terms().rates["ethernet"], terms(*reached), ("ethernet", CLIENT)

    def expected(kind: RateKind, *, client: bool) -> Rate | None:
        stages = [stage for subject, stage in reached if subject is None or client]
        rates = [free.get(kind), *(stage.rates.get(kind) for stage in stages)]
        return min((each for each in rates if each is not None), default=None)

    for client in (False, True):
        for kind in RateKind:
            own = client and kind in present.by_client.get(key, {})
            rate = (present.client_rates[key] if own else present.rates["ethernet"]).get(kind)
            lowest, limit = expected(kind, client=client), expected(kind.direction.limit, client=client)
            assert rate == (lowest if lowest is None or limit is None else min(lowest, limit))


def test_limit_of_a_stage_bounds_a_cap_that_is_higher() -> None:
    limit = Rate.parse("512kbit")
    present = terms((None, Stage(1.0, {RateKind.LIMIT: limit})))
    assert present.by_network["ethernet"][RateKind.CAP] == Term(limit, REASON, 5000, RuleName.BUDGET)
