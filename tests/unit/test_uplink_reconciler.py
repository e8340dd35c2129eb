"""What is applied of the throttled uplinks, what is tried again, and when the filter is looked at."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from examples import ETHERNET, WIFI, connection, ends, subflow
from model_uplinks import ModelUplinks
from policy_oracle import as_configured, decide_all
from worlds import ManualClock

from mptcp_throttle.model import FourTuple, RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.enforcing.uplinks import UplinkReconciler
from mptcp_throttled.vocabulary.decision import Decision
from mptcp_throttled.vocabulary.features import Situation
from mptcp_throttled.vocabulary.terms import PresentTerms

INTERVAL = 1.0
NETWORKS = (WIFI, ETHERNET.with_rates({RateKind.UPLINK_CAP: Rate.parse("250kbit")}))
TERMS = as_configured(NETWORKS)
ONE, OTHER = ends("10.1.0.1"), ends("10.1.0.2")


def decision(of: FourTuple, *, capped: bool = True) -> Decision:
    number = int(str(of.client.address).rsplit(".", 1)[1])
    paths = [subflow(f"10.{network}.0.{number}") for network in ((1, 2) if capped else (1,))]
    return decide_all([connection(number, *paths)], NETWORKS)[0]


@dataclass
class World:
    kernel: ModelUplinks = field(default_factory=ModelUplinks)
    clock: ManualClock = field(default_factory=ManualClock)
    live: frozenset[FourTuple] | None = None
    """What the sniffer's table has; None: there is no table."""

    def __post_init__(self) -> None:
        self.reconciler = UplinkReconciler(self.kernel, self.clock)
        self.reconciler.follow(Situation(interval=INTERVAL))
        self.repairs = 0

    def step(
        self,
        *capped: FourTuple,
        freed: FourTuple | None = None,
        ended: FourTuple | None = None,
        terms: PresentTerms = TERMS,
    ) -> list[str]:
        """Take a step with these changes; the methods that it called."""
        changes: dict[FourTuple, Decision | None] = {one: decision(one) for one in capped}
        if freed is not None:
            changes[freed] = decision(freed, capped=False)
        if ended is not None:
            changes[ended] = None
        self.kernel.calls.clear()
        self.kernel.tried.clear()
        self.repairs += self.reconciler.step(changes, terms, self._live()).repairs
        return list(self.kernel.calls)

    def _live(self) -> Callable[[], frozenset[FourTuple]] | None:
        live = self.live
        return None if live is None else lambda: live

    def step_when_due(self) -> list[str]:
        """Take the next step that is due by itself."""
        assert self.clock.now <= self.reconciler.next_deadline < math.inf
        self.clock.now = self.reconciler.next_deadline
        return self.step()

    @property
    def applied(self) -> set[FourTuple]:
        return {*self.reconciler.applied}


@pytest.fixture
def world() -> World:
    return World()


def test_nothing_is_attached_while_no_uplink_is_throttled(world: World) -> None:
    assert world.step() == []
    assert world.step(freed=ONE) == []
    assert world.reconciler.next_deadline == math.inf
    world.reconciler.note_kernel_change()
    assert world.step() == []


def test_uplink_is_throttled_at_once(world: World) -> None:
    assert world.step(ONE) == ["attach", "forget", "throttle"]
    assert world.step(OTHER) == ["forget", "throttle"]
    assert world.kernel.tried == [{OTHER}]
    assert world.applied == {*world.kernel.throttled} == {ONE, OTHER}


def test_filter_is_checked_once_an_interval(world: World) -> None:
    world.step(ONE)
    assert world.reconciler.next_deadline == world.clock.now + INTERVAL
    assert world.step_when_due() == ["attach"]
    assert world.reconciler.next_deadline == world.clock.now + INTERVAL


def test_filter_is_checked_early_with_what_else_is_checked(world: World) -> None:
    world.step(ONE)
    world.kernel.calls.clear()
    for passed, calls in ((0.4, []), (0.2, ["attach"]), (0.4, ["attach"])):
        world.clock.now += passed * INTERVAL
        world.reconciler.step({}, TERMS, early=True)
        assert world.kernel.calls == calls
    assert world.reconciler.next_deadline == world.clock.now + 0.6 * INTERVAL


def test_deleted_filter_is_back_at_the_next_step(world: World) -> None:
    world.step(ONE)
    assert world.repairs == 0
    world.kernel.has_filter = False
    world.reconciler.note_kernel_change()
    assert world.step() == ["attach"]
    assert world.kernel.has_filter
    assert world.repairs == 1


@pytest.mark.parametrize("how", ["freed", "ended"])
def test_filter_goes_when_the_last_client_has_been_told(world: World, how: str) -> None:
    world.step(ONE)
    world.kernel.untold = 1 if how == "freed" else 2
    done = world.step(freed=ONE) if how == "freed" else world.step(ended=ONE)
    assert done == ["forget", "throttle"]
    assert (world.applied, world.kernel.throttled) == (set(), {})
    assert world.step_when_due() == ["detach_if_told"]
    assert world.kernel.has_filter
    world.kernel.untold = 0
    assert world.step_when_due() == ["detach_if_told"]
    assert not world.kernel.has_filter
    assert world.reconciler.next_deadline == math.inf
    assert world.step(OTHER) == ["attach", "forget", "throttle"]


def test_refused_uplink_delays_no_other_uplink(world: World) -> None:
    world.kernel.refuse = {ONE}
    world.step(ONE, OTHER)
    assert world.applied == {OTHER}
    assert world.reconciler.errors == ("throttle 10.1.0.1:40000: E2BIG",)
    world.step(ends("10.1.0.3"))
    assert world.kernel.tried == [{ends("10.1.0.3")}]
    assert world.applied == {OTHER, ends("10.1.0.3")}


@pytest.mark.parametrize("refuse", [set[str | FourTuple](), {ONE}])
def test_windows_that_cannot_be_bounded_are_told_for_each_attempt(world: World, refuse: set[str | FourTuple]) -> None:
    world.kernel.window_problem = "the windows of 1 uplinks are not bounded: ss -t: ENOMEM"
    world.kernel.refuse = refuse
    problems = world.reconciler.step({ONE: decision(ONE)}, TERMS).window_problems
    assert problems == (world.kernel.window_problem,) * (2 if refuse else 1)


def test_refused_uplink_is_tried_again_with_growing_delays(world: World) -> None:
    world.kernel.refuse = {ONE}
    world.step(ONE)
    attempts = [world.clock.now]
    while len(attempts) < 7:
        if "throttle" in world.step_when_due():
            attempts.append(world.clock.now)
    delays = [after - before for before, after in pairwise(attempts)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, INTERVAL, INTERVAL])
    world.kernel.refuse.clear()
    while world.reconciler.errors:
        world.step_when_due()
    assert world.applied == {ONE}


def test_new_rate_reaches_the_uplinks_that_are_throttled(world: World) -> None:
    world.kernel.refuse = {OTHER}
    world.step(ONE, OTHER)
    faster = ETHERNET.with_rates({RateKind.UPLINK_CAP: Rate.parse("1mbit")})
    assert "throttle" in world.step(terms=as_configured((WIFI, faster)))
    assert {str(throttle.rate) for throttle in world.kernel.throttled.values()} == {"1mbit"}
    assert world.kernel.tried == [{ONE}]


def test_subflow_that_ended_meanwhile_is_not_tried_again(world: World) -> None:
    world.kernel.refuse = {ONE}
    world.step(ONE)
    world.step(ended=ONE)
    world.kernel.refuse.clear()
    while world.reconciler.errors:
        world.step_when_due()
    assert (world.applied, world.kernel.throttled) == (set(), {})


@pytest.mark.parametrize("changed", [False, True])
def test_uplinks_are_free_while_the_filter_cannot_be_there(world: World, changed: bool) -> None:
    world.step(ONE)
    world.kernel.refuse = {"attach"}
    world.kernel.has_filter = False
    world.reconciler.note_kernel_change()
    world.step(OTHER) if changed else world.step()
    assert (world.applied, world.kernel.throttled) == (set(), {})
    assert world.reconciler.errors == ("attach: ENOMEM",)
    world.kernel.refuse.clear()
    world.step_when_due()
    assert world.applied == ({ONE, OTHER} if changed else {ONE})
    assert not world.reconciler.errors


def test_clients_that_cannot_be_told_are_waited_for_with_pauses(world: World) -> None:
    """As when the interface has gone, with all that came through it."""
    world.step(ONE)
    world.kernel.refuse, world.kernel.untold = {"attach"}, 2
    world.step_when_due()
    world.step(ended=ONE)
    for _ in range(3):
        assert world.step_when_due() == ["detach_if_told"]
        assert world.reconciler.next_deadline > world.clock.now
    world.kernel.untold = 0
    assert world.step_when_due() == ["detach_if_told"]
    assert (world.reconciler.next_deadline, world.reconciler.errors) == (math.inf, ())


@pytest.mark.parametrize(
    ("live", "left"),
    [(frozenset(), set()), (frozenset({OTHER}), {OTHER}), (None, {ONE, OTHER})],
    ids=["both ended", "one lives", "no table"],
)
@pytest.mark.parametrize("in_use", [False, True])
def test_free_subflow_whose_client_is_out_of_reach_is_kept_while_it_lives(
    world: World, live: frozenset[FourTuple] | None, left: set[FourTuple], *, in_use: bool
) -> None:
    third = {ends("10.1.0.3")} if in_use else set()
    world.step(ONE, OTHER, *third)
    world.step(freed=ONE)
    world.step(freed=OTHER)
    world.kernel.unreached, world.live = frozenset({ONE, OTHER}), live
    world.step_when_due()
    assert {*world.kernel.unreached} == left
    world.step_when_due()
    assert world.kernel.has_filter == bool(left or in_use)
    assert world.applied == third


def test_free_subflow_out_of_reach_is_kept_while_it_has_a_socket(world: World) -> None:
    """The sniffer's table is empty when its only interface has gone, whatever lives."""
    world.step(ONE, OTHER)
    world.step(freed=ONE)
    world.step(freed=OTHER)
    world.kernel.unreached, world.live = frozenset({ONE, OTHER}), frozenset()
    world.kernel.sockets = frozenset({OTHER})
    world.step_when_due()
    assert world.kernel.unreached == {OTHER}
    world.kernel.sockets = frozenset()
    world.step_when_due()
    assert not world.kernel.unreached


def test_clients_out_of_reach_are_looked_at_once_an_interval(world: World) -> None:
    world.step(ONE)
    world.step(freed=ONE)
    world.kernel.unreached = frozenset({ONE})
    world.step_when_due()
    for _ in range(3):
        began = world.clock.now
        world.step_when_due()
        assert world.clock.now - began == INTERVAL
    world.reconciler.note_kernel_change()
    assert world.reconciler.next_deadline < world.clock.now, "its interface may be back"


def test_record_that_cannot_be_removed_is_removed_at_a_later_check(world: World) -> None:
    world.step(ONE)
    world.step(freed=ONE)
    world.kernel.unreached, world.live = frozenset({ONE}), frozenset()
    world.kernel.refuse = {"forget"}
    world.step_when_due()
    assert world.kernel.unreached == {ONE}
    assert world.reconciler.errors == ()
    world.kernel.refuse.clear()
    world.step_when_due()
    assert not world.kernel.unreached


def test_subflow_that_cannot_be_freed_is_still_shown_and_freed_later(world: World) -> None:
    world.step(ONE)
    world.kernel.refuse = {"throttle"}
    world.step(freed=ONE)
    assert world.applied == {ONE}
    world.kernel.refuse.clear()
    world.step_when_due()
    assert (world.applied, world.kernel.throttled) == (set(), {})


def test_release_frees_every_uplink_and_says_what_failed(world: World) -> None:
    world.step(ONE)
    assert world.reconciler.release() == ()
    assert (world.applied, world.kernel.throttled, world.reconciler.next_deadline) == (set(), {}, math.inf)
    world.kernel.refuse = {"release"}
    assert world.reconciler.release() == ("release: ENOMEM",)


@pytest.mark.parametrize("may_live", [False, True])
def test_client_of_a_subflow_that_may_live_is_told(world: World, may_live: bool) -> None:
    world.step(ONE)
    world.kernel.calls.clear()
    world.kernel.tried.clear()
    world.reconciler.step({ONE: None}, TERMS, may_live=may_live)
    assert ({ONE} in world.kernel.tried) == may_live
    assert (world.applied, world.kernel.throttled) == (set(), {})


def test_client_that_makes_its_subflow_a_backup_is_not_told_otherwise(world: World) -> None:
    world.step(ONE)
    paths = replace(subflow("10.1.0.1"), backup=True), subflow("10.2.0.1")
    freed = decide_all([connection(1, *paths)], NETWORKS)[0]
    world.kernel.tried.clear()
    world.reconciler.step({ONE: freed}, TERMS)
    assert not any(world.kernel.tried)
    assert (world.applied, world.kernel.throttled) == (set(), {})
