"""Allowances: which budgets kernel programs count, where a stage begins, and which rates apply from there on."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Final

from examples import ETHERNET, WIFI
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttle.model import AccessNetwork, Budget, ClientPrefix, Counting, Every, Per, RateKind, Stage, Window
from mptcp_throttle.proxies import ONE_PROXY
from mptcp_throttle.units import Rate
from mptcp_throttle.when import When
from mptcp_throttled.accounting.ledger import Carried, Choice, Ledger
from mptcp_throttled.accounting.ledger_rows import StoredAccount
from mptcp_throttled.kernel.allowances import _Armed, end_of_stage
from mptcp_throttled.policy.next_stage import allowances, subnet_allowances
from mptcp_throttled.vocabulary.allowances import MAX_ALLOWANCES, AllowanceKey, StageAhead
from mptcp_throttled.vocabulary.budgets import Addition, Reached, Spent
from mptcp_throttled.vocabulary.operator import Override
from mptcp_throttled.vocabulary.terms import Facts

CLIENT: Final = ip_address("10.1.0.7")
GIGABYTE: Final = 10**9
SLOW, SLOWER = Rate.parse("512kbit"), Rate.parse("256kbit")
STAGES: Final = (Stage(0.5, {RateKind.CAP: SLOW}), Stage(1.0, {RateKind.CAP: SLOWER, RateKind.LIMIT: SLOW}))
BUDGET: Final = Budget(GIGABYTE, Per.CLIENT, Counting.BOTH, Every.DAY, 0, None, STAGES)
NOON: Final = 1_800_000_000.0


def ledger(*budgets: Budget, schedule: tuple[Window, ...] = ()) -> Ledger:
    book = Ledger({}, lambda: True)
    book.configure((WIFI, replace(ETHERNET, budgets=budgets, schedule=schedule)), None, NOON)
    return book


def carry(book: Ledger, amount: int, client: object = CLIENT, seconds: float = 1.0) -> None:
    book.count([Carried("ethernet", client, amount, 0, is_mptcp=True)], NOON, seconds)  # type: ignore[arg-type]


def applied(stages: int, budget: Budget = BUDGET) -> Spent:
    return {"ethernet": {CLIENT: (Reached(budget, stages, None),)}}


def test_only_subjects_near_to_a_stage_are_counted_in_the_kernel() -> None:
    book = ledger(BUDGET)
    carry(book, 200_000_000, seconds=60)
    assert book.stages_ahead({}, NOON) == []
    carry(book, 100_000_000, seconds=60)
    assert book.stages_ahead({}, NOON) == [StageAhead("ethernet", CLIENT, BUDGET, 0, 200_000_000)]


def test_subject_near_to_a_stage_at_a_restart_is_counted_at_once() -> None:
    before = ledger(BUDGET)
    carry(before, 400_000_000)
    written = before.changes()
    stored = {key: StoredAccount(written.periods[key], uses) for key, uses in written.uses.items()}
    after = Ledger(stored, lambda: True)
    after.configure((WIFI, replace(ETHERNET, budgets=(BUDGET,))), None, NOON)
    assert after.stages_ahead({}, NOON) == [StageAhead("ethernet", CLIENT, BUDGET, 0, 100_000_000)]


def test_reload_leaves_the_same_subjects_counted() -> None:
    book = ledger(BUDGET)
    for number in range(2 * MAX_ALLOWANCES):
        carry(book, 400_000_000, ip_address("10.1.1.0") + number)
    before = {ahead.subject for ahead in book.stages_ahead({}, NOON)}
    book.configure((WIFI, replace(ETHERNET, budgets=(BUDGET,))), None, NOON)
    assert {ahead.subject for ahead in book.stages_ahead({}, NOON)} == before
    carry(book, 1000)
    assert CLIENT not in {ahead.subject for ahead in book.stages_ahead({}, NOON)}
    carry(book, 400_000_000)
    assert CLIENT in {ahead.subject for ahead in book.stages_ahead({}, NOON)}


def test_subject_whose_addition_ends_near_to_a_stage_is_counted() -> None:
    book = ledger(BUDGET)
    carry(book, 490_000_000)
    (key,) = book.matching("ethernet", CLIENT, Choice())
    book.add(key, CLIENT, Addition(20 * GIGABYTE, 20 * GIGABYTE, NOON + 60), NOON)
    assert book.stages_ahead({}, NOON) == []
    book.count([], NOON + 61, 1.0)
    assert [ahead.left for ahead in book.stages_ahead({}, NOON + 61)] == [10_000_000]


def test_use_set_by_hand_near_to_a_stage_is_counted_at_once() -> None:
    book = ledger(BUDGET)
    (key,) = book.matching("ethernet", CLIENT, Choice())
    book.set_used(key, CLIENT, 499_000_000, NOON)
    assert book.stages_ahead({}, NOON) == [StageAhead("ethernet", CLIENT, BUDGET, 0, 1_000_000)]


def test_fast_subject_is_near_to_a_stage_earlier() -> None:
    book = ledger(replace(BUDGET, amount=10 * GIGABYTE))
    carry(book, 1_500_000_000, seconds=1)
    assert [ahead.left for ahead in book.stages_ahead({}, NOON)] == [3_500_000_000]


def test_stage_that_is_reached_is_ahead_until_its_rates_apply() -> None:
    book = ledger(BUDGET)
    carry(book, 490_000_000)
    carry(book, 20_000_000)
    assert book.stages_ahead({}, NOON) == [StageAhead("ethernet", CLIENT, BUDGET, 0, -10_000_000)]
    assert book.stages_ahead(applied(1), NOON) == [StageAhead("ethernet", CLIENT, BUDGET, 1, 490_000_000)]
    assert book.stages_ahead(applied(2), NOON) == []


def test_nearest_of_several_budgets_is_the_one_that_is_counted() -> None:
    weekly = replace(BUDGET, every=Every.WEEK, amount=GIGABYTE * 8 // 10)
    book = ledger(BUDGET, weekly)
    carry(book, 300_000_000)
    assert book.stages_ahead({}, NOON) == [StageAhead("ethernet", CLIENT, weekly, 0, 100_000_000)]


def test_what_was_added_is_used_before_the_stage() -> None:
    book = ledger(BUDGET)
    carry(book, 490_000_000)
    (key,) = book.matching("ethernet", CLIENT, Choice())
    book.add(key, CLIENT, Addition(GIGABYTE, GIGABYTE, None), NOON)
    assert [ahead.left for ahead in book.stages_ahead({}, NOON)] == [1_010_000_000]


def test_nothing_is_counted_in_a_window_that_does_not_count() -> None:
    free = Window(When.parse("00:00-24:00"), {}, counts=False)
    book = ledger(BUDGET)
    carry(book, 400_000_000)
    book.configure((WIFI, replace(ETHERNET, budgets=(BUDGET,), schedule=(free,))), None, NOON)
    assert book.stages_ahead({}, NOON) == []


def test_most_recent_clients_are_counted_if_there_are_too_many() -> None:
    book = ledger(BUDGET)
    clients = [IPv4Address("10.1.0.0") + number for number in range(1, MAX_ALLOWANCES + 5)]
    book.count([Carried("ethernet", client, 400_000_000, 0, is_mptcp=True) for client in clients], NOON, 1.0)
    kept = [ahead.subject for ahead in book.stages_ahead({}, NOON)]
    assert kept == clients[-(MAX_ALLOWANCES - 1) :]


def made(facts: Facts, network: AccessNetwork = ETHERNET, stage: int = 1) -> tuple[Rate | None, Rate | None]:
    (allowance,) = allowances((WIFI, network), [StageAhead(network.name, CLIENT, BUDGET, stage, 5)], 0.0, facts)
    return allowance.cap, allowance.limit


def test_rates_are_those_that_the_rules_make_when_the_stage_is_reached() -> None:
    free = replace(ETHERNET, rates={})
    assert made(Facts(), free, stage=0) == (SLOW, None)
    assert made(Facts(), free) == (SLOWER, SLOW)
    by_hand = Override("ethernet", RateKind.CAP, Rate.parse("9mbit"), None, CLIENT)
    assert made(Facts((by_hand,)), free) == (Rate.parse("9mbit"), SLOW)
    lower = replace(ETHERNET, rates={RateKind.CAP: Rate.parse("64kbit")})
    assert made(Facts(), lower) == (Rate.parse("64kbit"), SLOW)


def test_addresses_use_the_allowances_of_their_client_and_network() -> None:
    networks = WIFI, ETHERNET
    stages = [StageAhead("ethernet", subject, BUDGET, 0, 5) for subject in (CLIENT, None)]
    by_key = {each.key: each for each in allowances(networks, stages, 0.0, Facts())}
    of_client, of_network = AllowanceKey("ethernet", CLIENT), AllowanceKey("ethernet", None)
    rows = subnet_allowances(networks, by_key, ONE_PROXY)
    assert [(row.network.name, row.of_client, row.of_network) for row in rows] == [
        ("wifi", None, None),
        ("ethernet", None, of_network),
        ("ethernet", of_client, of_network),
    ]
    assert rows[-1].network.subnets == (ip_network(f"{CLIENT}/32"),)
    assert subnet_allowances(networks, {}, ONE_PROXY) == []


def test_client_that_a_reload_has_moved_elsewhere_uses_no_allowance() -> None:
    client = ip_address("fd00:2::7:0:0:1")
    stage = StageAhead("ethernet", client, BUDGET, 0, 5)
    by_key = {each.key: each for each in allowances((WIFI, ETHERNET), [stage], 0.0, Facts())}
    shorter = replace(ETHERNET, client_prefix=ClientPrefix(ipv6=48))
    taken = replace(ETHERNET, subnets=(ip_network("10.9.0.0/24"),))
    for network in (shorter, taken):
        assert [row.of_client for row in subnet_allowances((WIFI, network), by_key, ONE_PROXY)] == []
    assert allowances((WIFI,), [stage], 0.0, Facts()) == []


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5), st.floats(0, 1)), min_size=1, max_size=20),
    st.integers(0, 10**9),
)
def test_observations_only_narrow_down_where_a_stage_begins(looks: list[tuple[int, int, float]], true_end: int) -> None:
    """Each observation begins at a count, during which more bytes are carried, and sees what is left at some moment."""
    known, count, worst = None, 0, None
    for advance, during, moment in looks:
        count += advance
        left = true_end - (count + round(moment * during))
        known = end_of_stage(known, left, count, count + during)
        count += during
        error = abs(known - true_end)
        assert error <= during
        assert worst is None or error <= worst
        worst = error


def test_end_of_a_stage_is_corrected_by_counts_around_an_observation() -> None:
    armed = _Armed(number=1, arming=1)
    armed.look("stage", left=1000, before=None, after=None, present=500)
    assert armed.end == 1500
    # 300 bytes were missing. At the count of 700, between both, 500 are left.
    armed.look("stage", left=500, before=600, after=800, present=900)
    assert armed.end == 1100
    armed.look("stage", left=150, before=1040, after=1060, present=1070)
    assert armed.end == 1190


def test_first_observation_counts_no_byte_twice() -> None:
    assert end_of_stage(None, left=500, before=1000, after=1400) == 1500
    assert end_of_stage(None, left=-500, before=100, after=100) == -400
