"""Whatever happens in whatever order: what is kept up to date is what is decided and planned from scratch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

import pytest
from examples import ETHERNET, WIFI, capped, client, connection, network, subflow
from hypothesis import given
from hypothesis import strategies as st
from policy_oracle import as_configured, decide_all, decision_table, plan_of, reconfigure

from mptcp_throttle.model import AccessNetwork, Connection, FourTuple, Per, RateKind, Token
from mptcp_throttle.units import Rate
from mptcp_throttled.enforcing.diff import diff
from mptcp_throttled.plan.planner import PlanDelta, Planner
from mptcp_throttled.plan.shares import PlanSettings, Slot
from mptcp_throttled.policy.decisions import DecisionTable
from mptcp_throttled.vocabulary.decision import Share
from mptcp_throttled.vocabulary.kernel_plan import DRAIN_RATE, UNTOUCHED, KernelPlan, payload_pace
from mptcp_throttled.vocabulary.kernel_state import AssignmentState, HtbState, KernelState, PacingState, QdiscState
from mptcp_throttled.vocabulary.operations import ChangeClass, ClassOperation

RULES = PlanSettings(max_minor=6, linger=3.0, other_traffic=None)
TERMS = as_configured((WIFI, ETHERNET))
LIMITED = network("third", 3, 3, cap="2mbit", limit="3mbit")

# Clients with two addresses in a network, in and out of the networks, on ports that are used again.
_SUBFLOWS = st.builds(
    lambda net, host, port, v6, backup: subflow(
        f"fd00:{net}::{host}" if v6 else f"10.{net}.0.{host}", port, backup=backup
    ),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 2),
    st.booleans(),
    st.booleans(),
)
_CHANGES = st.dictionaries(
    st.integers(0, 4), st.none() | st.lists(_SUBFLOWS, min_size=1, max_size=4, unique_by=lambda s: s.ends), max_size=3
)
_NETWORKS = st.tuples(st.sampled_from(Per), st.sampled_from(Per), st.booleans()).map(
    lambda per: (
        WIFI,
        replace(ETHERNET, per=per[0]),
        replace(LIMITED, per=per[1]).with_rates({RateKind.LIMIT: None if per[2] else Rate(9000)}),
    )
)
_RULES = st.builds(
    replace, st.just(RULES), linger=st.sampled_from([0.0, 3.0]), other_traffic=st.sampled_from([None, Rate(10_000_000)])
)


_PASSED = st.sampled_from([0.0, 0.1, 1.0, 2.0, 5.0])
_REFUSED: st.SearchStrategy[set[int]] = st.builds(set) | st.sets(st.integers(2, RULES.max_minor))


class Step(NamedTuple):
    """What changes in the table, what is configured then, the time that has passed, the classes that are refused."""

    changes: dict[Token, Connection | None]
    networks: tuple[AccessNetwork, ...]
    paused: bool
    rules: PlanSettings
    passed: float
    refused: set[int]


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    networks: tuple[AccessNetwork, ...] = draw(_NETWORKS)
    rules: PlanSettings = draw(_RULES)
    paused, taken = False, []
    for _ in range(draw(st.integers(1, 12))):
        match draw(st.integers(0, 9)):
            case 0:
                networks = draw(_NETWORKS)
            case 1:
                rules = draw(_RULES)
            case 2:
                paused = not paused
        changes = {Token(n): None if s is None else connection(n, *s) for n, s in draw(_CHANGES).items()}
        taken.append(Step(changes, networks, paused, rules, draw(_PASSED), draw(_REFUSED)))
    return taken


def without_ports_of_others(
    changes: dict[Token, Connection | None], table: Mapping[Token, Connection]
) -> dict[Token, Connection | None]:
    """The changes, less the subflows that another connection has: the sniffer knows each by one token."""
    taken = {s.ends for token, c in table.items() if token not in changes for s in c.subflows}
    kept: dict[Token, Connection | None] = {}
    for token, changed in changes.items():
        subflows = () if changed is None else tuple(s for s in changed.subflows if s.ends not in taken)
        taken |= {s.ends for s in subflows}
        kept[token] = connection(token, *subflows) if subflows else None
    return kept


def in_kernel(plan: KernelPlan) -> KernelState:
    assignments = {
        version: AssignmentState({e: m for e, m in plan.assignments.items() if e.client.address.version == version})
        for version in (4, 6)
    }
    htb = HtbState(plan.default_minor, True, dict(plan.classes)) if plan.htb else None
    return KernelState(QdiscState(htb), assignments if plan.htb else {}, PacingState(dict(plan.paces)))


@given(steps())
def test_planner_equals_a_plan_made_from_the_whole_table(taken: list[Step]) -> None:
    table, planner, now = DecisionTable(), Planner(), 0.0
    minors: dict[Share, Slot] = {}
    for changes, networks, paused, rules, passed, refused in taken:
        now += passed
        before = in_kernel(planner.plan)
        previous = reconfigure(table, networks, paused=paused)
        previous = {**table.update(without_ports_of_others(changes, table.connections)), **previous}
        change = planner.update(previous, table.decisions, as_configured(networks), now, rules, refused)
        decisions = decide_all(table.connections.values(), networks, paused=paused)
        assert [t for of in table.decisions.values() for t in of] == list(decisions)
        wanted = {d.downlink.share for d in decisions if d.downlink.share is not None}
        assert wanted == {s for s, slot in planner.slots.items() if slot.idle_since is None} | set(
            planner.without_class
        )
        plan = plan_of(decisions, networks, planner.slots, rules) if planner.slots else UNTOUCHED
        spare = {minor: rate for minor, rate in planner.plan.classes.items() if minor not in plan.classes}
        assert planner.plan == replace(plan, classes={**plan.classes, **spare}).persistent()
        assert len(spare) <= len(planner.slots) / 2
        assert set(spare.values()) <= {DRAIN_RATE}
        assert not spare.keys() & refused
        if not change.htb_changes and planner.slots:
            # What the change alone asks for is what the whole plan asks for.
            part, whole = diff(in_kernel(change.before), change.after), diff(before, planner.plan)
            assert len(part) == len(whole)
            assert all(operation in whole for operation in part)
        assert len({slot.minor for slot in planner.slots.values()}) == len(planner.slots)
        assert all(2 <= slot.minor <= rules.max_minor for slot in planner.slots.values())
        assert all(planner.slots[s].minor == slot.minor for s, slot in minors.items() if s in planner.slots)
        assert not planner.without_class or len(planner.slots) == rules.max_minor - 1 or minors.keys() - planner.slots
        minors = dict(planner.slots)


def play(
    planner: Planner, decisions: DecisionTable, now: float, *table: Connection, refused: Collection[int] = ()
) -> PlanDelta:
    previous = decisions.replace({c.token: c for c in table})
    return planner.update(previous, decisions.decisions, TERMS, now, RULES, refused)


def test_plan_without_shares_leaves_the_interface_untouched() -> None:
    planner, decisions = Planner(), decision_table((WIFI, ETHERNET))
    play(planner, decisions, 0.0, connection(1, subflow("10.1.0.2")))
    assert planner.plan == UNTOUCHED
    play(planner, decisions, 0.0, client(1))
    assert planner.plan.htb
    play(planner, decisions, 1.0)
    assert planner.next_expiry == pytest.approx(4.0, abs=0.1)
    play(planner, decisions, 4.0)
    assert planner.plan == UNTOUCHED


def test_new_rate_of_a_share_needs_no_new_decision() -> None:
    planner, decisions = Planner(), decision_table((WIFI, ETHERNET))
    play(planner, decisions, 0.0, *map(client, (1, 2)))
    faster = (WIFI, ETHERNET.with_rates({RateKind.CAP: Rate.parse("4mbit")}))
    delta = planner.update({}, decisions.decisions, as_configured(faster), 0.1, RULES)
    assert delta.after.classes == dict.fromkeys(planner.plan.assignments.values(), Rate.parse("4mbit"))
    assert delta.after.persistent() == planner.plan
    assert delta.decisions.keys() == {capped(1), capped(2)}
    assert {*planner.plan.paces.values()} == {payload_pace(Rate.parse("4mbit"), 1)}
    assert planner.update({}, decisions.decisions, as_configured(faster), 0.2, RULES).empty


def test_share_without_class_gets_the_next_one_that_has_rested() -> None:
    planner, decisions = Planner(), decision_table((WIFI, ETHERNET))
    play(planner, decisions, 0.0, *map(client, range(1, 8)))
    assert [share.who for share in planner.without_class] == ["10.1.0.6", "10.1.0.7"]
    play(planner, decisions, 1.0, *map(client, range(2, 8)))
    play(planner, decisions, 4.0, *map(client, range(2, 8)))
    assert len(planner.without_class) == 2
    play(planner, decisions, 4.1, *map(client, range(2, 8)))
    assert [share.who for share in planner.without_class] == ["10.1.0.7"]
    assert planner.plan.assignments[client(6).subflows[0].ends] == 2


def test_free_class_goes_to_the_next_share_if_the_first_has_ended() -> None:
    planner, decisions = Planner(), decision_table((WIFI, ETHERNET))
    play(planner, decisions, 0.0, *map(client, range(1, 8)))
    play(planner, decisions, 1.0, *map(client, range(2, 8)))
    play(planner, decisions, 4.0, *map(client, range(2, 8)))
    assert [share.who for share in planner.without_class] == ["10.1.0.6", "10.1.0.7"]
    play(planner, decisions, 4.1, *map(client, (2, 3, 4, 5, 7)))
    assert not planner.without_class


def test_new_share_gets_the_spare_class_of_one_that_has_lingered() -> None:
    planner, decisions = Planner(), decision_table((WIFI, ETHERNET))
    play(planner, decisions, 0.0, *map(client, (1, 2, 3)))
    play(planner, decisions, 1.0, *map(client, (2, 3)))
    play(planner, decisions, 4.0, *map(client, (2, 3)))
    before = in_kernel(planner.plan)
    assert len(planner.plan.classes) == 3
    delta = play(planner, decisions, 4.1, *map(client, (2, 3, 4)))
    for operations in (diff(before, planner.plan), diff(in_kernel(delta.before), delta.after)):
        classes = [operation for operation in operations if isinstance(operation, ClassOperation)]
        assert classes == [ChangeClass(planner.plan.assignments[capped(4)], Rate(1_000_000))]


def test_at_most_half_as_many_classes_are_spare_as_there_are_shares() -> None:
    planner, decisions = Planner(), decision_table((WIFI, ETHERNET))
    play(planner, decisions, 0.0, *map(client, range(1, 6)))
    play(planner, decisions, 1.0, *map(client, (4, 5)))
    play(planner, decisions, 4.0, *map(client, (4, 5)))
    assert len(planner.plan.classes) == 3
    play(planner, decisions, 4.1, client(5))
    play(planner, decisions, 7.5, client(5))
    assert len(planner.plan.classes) == 1
    play(planner, decisions, 8.0)
    play(planner, decisions, 11.5)
    assert planner.plan == UNTOUCHED
    play(planner, decisions, 12.0, client(1), client(2), client(3))
    assert len(planner.plan.classes) == 3


def test_class_that_the_kernel_refuses_is_not_spare() -> None:
    planner, decisions = Planner(), decision_table((WIFI, ETHERNET))
    play(planner, decisions, 0.0, *map(client, range(1, 6)))
    play(planner, decisions, 1.0, *map(client, (3, 4, 5)))
    play(planner, decisions, 4.0, *map(client, (3, 4, 5)), refused={3})
    assert set(planner.plan.classes) == {2, 4, 5, 6}
    play(planner, decisions, 4.1, *map(client, (3, 4, 5)), refused={2})
    assert set(planner.plan.classes) == {4, 5, 6}


def planned(*table: Connection, found: dict[FourTuple, int] | None = None) -> Planner:
    planner, decisions = Planner(), decision_table((WIFI, ETHERNET))
    planner.adopt(found or {})
    previous = decisions.replace({c.token: c for c in table})
    planner.update(previous, decisions.decisions, TERMS, 0.0, RULES)
    return planner


def test_adopted_plan_needs_no_operation_in_any_table_order() -> None:
    before = planned(*map(client, (3, 1, 4, 2)))
    kernel = in_kernel(before.plan)
    after = planned(*map(client, (1, 2, 3, 4)), found=dict(before.plan.assignments))
    assert diff(kernel, after.plan) == ()
    assert diff(kernel, planned(*map(client, (1, 2, 3, 4))).plan) != ()


def test_new_share_gets_no_class_that_an_adopted_assignment_names() -> None:
    gone, decisions = {capped(9): 2, capped(1): 3}, decision_table((WIFI, ETHERNET))
    planner = Planner()
    planner.adopt(gone)
    play(planner, decisions, 0.0, *map(client, (1, 2, 3, 4, 5)))
    assert dict(planner.plan.assignments) == {capped(1): 3, capped(2): 4, capped(3): 5, capped(4): 6}
    assert [share.who for share in planner.without_class] == ["10.1.0.5"]
    play(planner, decisions, 0.1, *map(client, (1, 2, 3, 4, 5)))
    assert planner.plan.assignments[capped(5)] == 2


def test_adopted_assignments_count_for_the_first_plan_only() -> None:
    planner, decisions = Planner(), decision_table((WIFI, ETHERNET))
    planner.adopt({capped(1): 5, capped(2): 3})
    play(planner, decisions, 0.0)
    assert planner.plan == UNTOUCHED
    play(planner, decisions, 0.1, client(1))
    assert dict(planner.plan.assignments) == {capped(1): 3}


@given(
    st.dictionaries(st.integers(1, 8), st.integers(0, 9) | st.just(0xFFFF_FFFF)),
    st.lists(st.integers(1, 8), unique=True),
    st.lists(st.integers(1, 8), unique=True),
)
def test_any_adopted_assignments_give_every_share_its_own_class(
    found: dict[int, int], first: list[int], then: list[int]
) -> None:
    planner, decisions = Planner(), decision_table((WIFI, ETHERNET))
    planner.adopt({capped(number): minor for number, minor in found.items()})
    for now, table in enumerate((first, then, then)):
        play(planner, decisions, float(now), *map(client, table))
        minors = [slot.minor for slot in planner.slots.values()]
        assert len(set(minors)) == len(minors)
        assert all(2 <= minor <= RULES.max_minor for minor in minors)
        assert len(planner.slots) + len(planner.without_class) >= len(table)
        if now == 0:
            others = {minor for number, minor in found.items() if number not in table}
            new = {n for n in table if n not in found}
            assert not others & {
                planner.plan.assignments[capped(n)] for n in new if capped(n) in planner.plan.assignments
            }
