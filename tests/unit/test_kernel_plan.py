from collections.abc import Sequence
from dataclasses import replace

from examples import ETHERNET, WIFI, connection, ends, subflow
from policy_oracle import decide_all, plan_of

from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.plan import shares as planning
from mptcp_throttled.plan.shares import PlanSettings, Slot, Slots, expiry
from mptcp_throttled.vocabulary.decision import Decision, Share
from mptcp_throttled.vocabulary.kernel_plan import DRAIN_RATE, PAYLOAD_PART

RULES = PlanSettings(max_minor=5, linger=10.0, other_traffic=None)
NETWORKS = (WIFI, ETHERNET)
ONE_MBIT = Rate.parse("1mbit")


def share(who: str) -> Share:
    return Share("ethernet", RateKind.CAP, who)


A, B, C, D, E = (share(who) for who in "ABCDE")


def assign_classes(shares: Sequence[Share], before: Slots, now: float, rules: PlanSettings) -> dict[Share, Slot]:
    taken = {slot.minor for slot in before.values()}
    free = (minor for minor in range(2, rules.max_minor + 1) if minor not in taken)
    return planning.assign_classes(shares, before, now, rules, free)


def shares_of(decisions: Sequence[Decision]) -> list[Share]:
    return list(dict.fromkeys(d.downlink.share for d in decisions if d.downlink.share is not None))


def capped() -> tuple[Decision, ...]:
    return decide_all([connection(1, subflow("10.1.0.2"), subflow("10.2.0.2"))], NETWORKS)


def test_throttled_subflow_has_a_mark_and_a_class() -> None:
    decisions = capped()
    (share,) = shares_of(decisions)
    plan = plan_of(decisions, NETWORKS, {share: Slot(2)}, RULES)
    assert (plan.htb, plan.default_minor) == (True, 0)
    assert dict(plan.classes) == {2: ONE_MBIT}
    assert dict(plan.assignments) == {ends("10.1.0.2"): 2}


def test_subflows_of_a_share_divide_its_pace_in_bytes_of_payload() -> None:
    connections = [connection(n, subflow("10.1.0.2", 4000 + n), subflow("10.2.0.2", 4000 + n)) for n in range(4)]
    decisions = decide_all(connections, NETWORKS)
    plan = plan_of(decisions, NETWORKS, assign_classes(shares_of(decisions), {}, 0.0, RULES), RULES)
    assert dict(plan.paces) == {ends("10.1.0.2", 4000 + n): int(125_000 * PAYLOAD_PART / 4) for n in range(4)}


def test_stalled_subflows_take_no_part_of_the_pace_of_their_share() -> None:
    stalled = [replace(subflow("10.1.0.2", 5000 + n), stalled=True) for n in range(3)]
    paths = [subflow("10.1.0.2", 4000), subflow("10.1.0.2", 4001), *stalled]
    for used, sharers in ((paths, 2), (stalled, 1)):
        decisions = decide_all([connection(1, subflow("10.2.0.2"), *used)], NETWORKS)
        (share,) = shares_of(decisions)
        plan = plan_of(decisions, NETWORKS, {share: Slot(2)}, RULES)
        assert dict(plan.paces) == {one.ends: int(125_000 * PAYLOAD_PART / sharers) for one in used}


def test_limited_subflow_is_not_paced_and_has_its_rate_at_once() -> None:
    networks = [WIFI.with_rates({RateKind.LIMIT: ONE_MBIT}), ETHERNET]
    decisions = decide_all([connection(1, subflow("10.2.0.2"))], networks)
    plan = plan_of(decisions, networks, assign_classes(shares_of(decisions), {}, 0.0, RULES), RULES)
    assert (len(plan.assignments), dict(plan.classes), len(plan.paces)) == (1, {2: ONE_MBIT}, 0)


def test_other_traffic_has_the_first_class_as_default() -> None:
    rules = PlanSettings(5, 10.0, Rate.parse("50mbit"))
    plan = plan_of(capped(), NETWORKS, {A: Slot(2)}, rules)
    assert plan.default_minor == 1
    assert dict(plan.classes) == {1: Rate.parse("50mbit"), 2: DRAIN_RATE}


def test_share_keeps_its_class_and_new_shares_get_the_lowest_free() -> None:
    first = assign_classes([A, B], {}, 0.0, RULES)
    assert first == {A: Slot(2), B: Slot(3)}
    assert assign_classes([C, B], first, 1.0, RULES) == {A: Slot(2, 1.0), B: Slot(3), C: Slot(4)}


def test_idle_class_drains_lingers_and_goes() -> None:
    slots = assign_classes([A], {}, 0.0, RULES)
    idle = assign_classes([], slots, 5.0, RULES)
    assert idle == {A: Slot(2, 5.0)}
    assert dict(plan_of((), NETWORKS, idle, RULES).classes) == {2: DRAIN_RATE}
    assert expiry(idle[A], RULES.linger) == 15.0
    assert assign_classes([], idle, 14.9, RULES) == idle
    assert assign_classes([], idle, 15.0, RULES) == {}


def test_share_that_comes_back_finds_its_class() -> None:
    idle = {A: Slot(2, 5.0)}
    assert assign_classes([A], idle, 9.0, RULES) == {A: Slot(2)}
    assert expiry(Slot(2), RULES.linger) is None


def test_minor_given_back_rests_for_one_step() -> None:
    gone = {A: Slot(2, 0.0)}
    assert assign_classes([B], gone, 100.0, RULES) == {B: Slot(3)}


def test_share_gets_no_class_if_no_minor_is_left() -> None:
    slots = assign_classes([A, B, C, D, E], {}, 0.0, RULES)
    assert [slot.minor for slot in slots.values()] == [2, 3, 4, 5]
    assert E not in slots
