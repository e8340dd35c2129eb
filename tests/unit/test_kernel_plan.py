from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tables import ETHERNET, WIFI, connection, ends, subflow

from mptcp_throttle.units import Rate
from mptcp_throttled.desired import kernel_plan as planning
from mptcp_throttled.desired.kernel_plan import DRAIN_RATE, PAYLOAD_PART, PlanSettings, Slot, Slots, expiry, plan_of
from mptcp_throttled.policy.decide import Decision, Rule, Share, decide

RULES = PlanSettings(max_minor=5, linger=10.0, other_traffic=None)
ONE_MBIT = Rate.parse("1mbit")


def share(who: str) -> Share:
    return Share("ethernet", Rule.CAP, who)


A, B, C, D, E = (share(who) for who in "ABCDE")


def allot(shares: Sequence[Share], before: Slots, now: float, rules: PlanSettings) -> dict[Share, Slot]:
    taken = {slot.minor for slot in before.values()}
    free = (minor for minor in range(2, rules.max_minor + 1) if minor not in taken)
    return planning.allot(shares, before, now, rules, free)


def capped() -> tuple[Decision, ...]:
    return decide([connection(1, subflow("10.1.0.2"), subflow("10.2.0.2"))], [WIFI, ETHERNET])


def test_a_held_subflow_has_a_mark_and_a_class() -> None:
    decisions = capped()
    assert decisions[0].held is not None
    plan = plan_of(decisions, {decisions[0].held.share: Slot(2)}, RULES)
    assert (plan.htb, plan.default_minor) == (True, 0)
    assert plan.classes == {2: ONE_MBIT}
    assert plan.marks == {ends("10.1.0.2"): 2}


def test_those_who_share_a_rate_share_its_pace_in_bytes_of_payload() -> None:
    connections = [connection(n, subflow("10.1.0.2", 4000 + n), subflow("10.2.0.2", 4000 + n)) for n in range(4)]
    decisions = decide(connections, [WIFI, ETHERNET])
    plan = plan_of(decisions, allot([t.held.share for t in decisions if t.held], {}, 0.0, RULES), RULES)
    assert plan.paces == {ends("10.1.0.2", 4000 + n): int(125_000 * PAYLOAD_PART / 4) for n in range(4)}


def test_who_is_limited_is_not_paced_and_held_by_htb_at_once() -> None:
    decisions = decide([connection(1, subflow("10.2.0.2"))], [replace(WIFI, limit=ONE_MBIT), ETHERNET])
    rules = replace(RULES, settle=1.0)
    plan = plan_of(decisions, allot([t.held.share for t in decisions if t.held], {}, 0.0, rules), rules)
    assert (len(plan.marks), plan.classes, plan.paces) == (1, {2: ONE_MBIT}, {})


def test_until_a_class_has_settled_the_pace_alone_slows_its_subflows() -> None:
    decisions = capped()
    (held,) = (t.held for t in decisions if t.held is not None)
    rules = replace(RULES, settle=1.0)
    fresh = allot([held.share], {}, 0.0, rules)
    assert expiry(fresh[held.share], rules.linger) == 1.0
    assert plan_of(decisions, fresh, rules).classes == {2: DRAIN_RATE}
    assert plan_of(decisions, fresh, rules).paces == {ends("10.1.0.2"): int(125_000 * PAYLOAD_PART)}
    settled = allot([held.share], fresh, 1.0, rules)
    assert plan_of(decisions, settled, rules).classes == {2: ONE_MBIT}
    idle = allot([], settled, 2.0, rules)
    assert allot([held.share], idle, 3.0, rules) == {held.share: Slot(2, None, 4.0)}


def test_where_nothing_can_be_paced_any_more_nothing_settles() -> None:
    fresh = allot([A], {}, 0.0, replace(RULES, settle=1.0))
    assert allot([A], fresh, 0.1, RULES) == {A: Slot(2)}


def test_other_traffic_has_the_first_class_and_is_the_default() -> None:
    rules = PlanSettings(5, 10.0, Rate.parse("50mbit"))
    plan = plan_of(capped(), {A: Slot(2)}, rules)
    assert plan.default_minor == 1
    assert plan.classes == {1: Rate.parse("50mbit"), 2: DRAIN_RATE}


def test_a_share_keeps_its_class_and_new_ones_get_the_lowest_free() -> None:
    first = allot([A, B], {}, 0.0, RULES)
    assert first == {A: Slot(2), B: Slot(3)}
    assert allot([C, B], first, 1.0, RULES) == {A: Slot(2, 1.0), B: Slot(3), C: Slot(4)}


def test_an_idle_class_drains_lingers_and_goes() -> None:
    slots = allot([A], {}, 0.0, RULES)
    idle = allot([], slots, 5.0, RULES)
    assert idle == {A: Slot(2, 5.0)}
    assert plan_of((), idle, RULES).classes == {2: DRAIN_RATE}
    assert expiry(idle[A], RULES.linger) == 15.0
    assert allot([], idle, 14.9, RULES) == idle
    assert allot([], idle, 15.0, RULES) == {}


def test_a_share_that_comes_back_finds_its_class() -> None:
    idle = {A: Slot(2, 5.0)}
    assert allot([A], idle, 9.0, RULES) == {A: Slot(2)}
    assert expiry(Slot(2), RULES.linger) is None


def test_a_minor_given_up_rests_for_one_step() -> None:
    gone = {A: Slot(2, 0.0)}
    assert allot([B], gone, 100.0, RULES) == {B: Slot(3)}


def test_when_no_minor_is_left_the_share_goes_without() -> None:
    slots = allot([A, B, C, D, E], {}, 0.0, RULES)
    assert [slot.minor for slot in slots.values()] == [2, 3, 4, 5]
    assert E not in slots


@given(st.lists(st.sets(st.sampled_from("ABCDEFGH")), max_size=20))
def test_minors_are_unique_within_bounds_and_stable(steps: list[set[str]]) -> None:
    slots: dict[Share, Slot] = {}
    for now, wanted in enumerate(steps):
        before, slots = slots, allot([share(who) for who in sorted(wanted)], slots, float(now), RULES)
        minors = [slot.minor for slot in slots.values()]
        assert len(set(minors)) == len(minors)
        assert all(2 <= minor <= RULES.max_minor for minor in minors)
        assert all(before[s].minor == slots[s].minor for s in before if s in slots)
