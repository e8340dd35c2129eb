"""The paces of a plan; its classes and assignments are those of the stories in `golden/`."""

from collections.abc import Sequence
from dataclasses import replace

from examples import ETHERNET, WIFI, connection, ends, subflow
from policy_oracle import decide_all, plan_of

from mptcp_throttle.model import AccessNetwork, Connection, RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.plan.shares import PlanSettings, Slot
from mptcp_throttled.vocabulary.kernel_plan import PAYLOAD_PART, KernelPlan

NETWORKS = (WIFI, ETHERNET)
ONE_MBIT = Rate.parse("1mbit")


def planned(*connections: Connection, networks: Sequence[AccessNetwork] = NETWORKS) -> KernelPlan:
    """The plan for connections whose throttled subflows are one share."""
    decisions = decide_all(connections, networks)
    (share,) = {d.downlink.share for d in decisions if d.downlink.share is not None}
    return plan_of(decisions, networks, {share: Slot(2)}, PlanSettings(5, 10.0, other_traffic=None))


def test_subflows_of_a_share_divide_its_pace_in_bytes_of_payload() -> None:
    plan = planned(*(connection(n, subflow("10.1.0.2", 4000 + n), subflow("10.2.0.2", 4000 + n)) for n in range(4)))
    assert dict(plan.paces) == {ends("10.1.0.2", 4000 + n): int(125_000 * PAYLOAD_PART / 4) for n in range(4)}


def test_stalled_subflows_take_no_part_of_the_pace_of_their_share() -> None:
    stalled = [replace(subflow("10.1.0.2", 5000 + n), stalled=True) for n in range(3)]
    paths = [subflow("10.1.0.2", 4000), subflow("10.1.0.2", 4001), *stalled]
    for used, sharers in ((paths, 2), (stalled, 1)):
        plan = planned(connection(1, subflow("10.2.0.2"), *used))
        assert dict(plan.paces) == {one.ends: int(125_000 * PAYLOAD_PART / sharers) for one in used}


def test_limited_subflow_is_not_paced_and_has_its_rate_at_once() -> None:
    limited = WIFI.with_rates({RateKind.LIMIT: ONE_MBIT})
    plan = planned(connection(1, subflow("10.2.0.2")), networks=[limited, ETHERNET])
    assert (len(plan.assignments), dict(plan.classes), len(plan.paces)) == (1, {2: ONE_MBIT}, 0)
