"""The rules of the control loop: what waits and what does not, and when the whole kernel is read.

Time is a number here, the kernel is a model in memory: nothing sleeps, nothing needs root.
"""

from __future__ import annotations

import errno
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from examples import ETHERNET, WIFI, cap, capped, client, connection, ends, subflow
from immutables import Map
from loops import LoopOnModels
from model_uplinks import ModelUplinks
from worlds import ManualClock, configuration

from mptcp_throttle.errors import UserError
from mptcp_throttle.features import FeatureName
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import Ailment, Connection, FourTuple, Health, Per, RateKind, Token
from mptcp_throttle.units import Rate
from mptcp_throttled.answers.status import connections
from mptcp_throttled.answers.view import View
from mptcp_throttled.control.inbox import Inbox
from mptcp_throttled.control.requests import SetRate
from mptcp_throttled.control.source import TableUpdate
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.reporting.instruments import REGISTRY
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.features import FeatureState
from mptcp_throttled.vocabulary.kernel_state import AssignmentState, KernelState, PacingState, QdiscState
from mptcp_throttled.vocabulary.operations import (
    AddClass,
    ChangeAssignments,
    ChangeClass,
    ChangePaces,
    DeleteClass,
    InstallHtb,
    MakeAssignments,
    Operation,
    RestoreQdisc,
)
from mptcp_throttled.vocabulary.operator import Override, Pause
from mptcp_throttled.vocabulary.snapshot import KEEPS_SENDING
from mptcp_throttled.vocabulary.traffic import ClosedSubflow, SocketTotals

INTERVAL = 1.0
SLOW = Rate.parse("1mbit")


class World(LoopOnModels):
    """A loop with everything around it."""

    def step(self, *joined: Connection, ended: int | None = None, after: float = 0.0) -> list[Operation]:
        """Let time pass, connections join and one end, and take one step; the operations that it tried."""
        self.clock.now += after
        changes: dict[Token, Connection | None] = {one.token: one for one in joined}
        if ended is not None:
            changes[Token(ended)] = None
        if changes:
            self.source.update = TableUpdate("epoch", 1, changes, whole=False, problem=None)
        self.kernel.tried.clear()
        self.loop.step()
        return list(self.kernel.tried)

    def wait_until_due(self, limit: float = 100.0) -> list[Operation]:
        """Take the steps that are due by themselves until one of them tries something; what it tried."""
        end = self.clock.now + limit
        for _ in range(1000):
            self.clock.now = max(self.clock.now, self.loop.next_deadline)
            if self.clock.now >= end:
                break
            if tried := self.step():
                return tried
        raise AssertionError(f"nothing tried for {limit:g} s, or a deadline that does not move")

    def settle(self) -> None:
        """Two quiet seconds: all rates are applied."""
        for _ in range(20):
            self.step(after=0.1)

    @property
    def throttled(self) -> set[FourTuple]:
        return set(self.loop.snapshot.throttled)

    @property
    def errors(self) -> list[str]:
        return list(self.loop.snapshot.errors)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.step()
    return world


# What is done at once, and with how little


def test_loop_touches_nothing_while_no_subflow_is_throttled(world: World) -> None:
    assert world.step(connection(1, subflow("10.1.0.1"))) == []
    assert world.kernel.applied == []


def test_first_cap_installs_htb_and_a_further_cap_reads_no_kernel(world: World) -> None:
    tried = world.step(client(1))
    assert [type(operation) for operation in tried] == [ChangePaces, InstallHtb, AddClass, MakeAssignments]
    assert world.throttled == {capped(1)}
    assert world.loop.snapshot.applied == world.loop.snapshot.plan
    reads = world.kernel.reads
    tried = world.step(client(2))
    assert [type(operation) for operation in tried] == [ChangePaces, AddClass, ChangeAssignments]
    assert (world.kernel.reads, world.throttled) == (reads, {capped(1), capped(2)})


def test_steering_gets_the_caps_of_downloads_and_their_present_rates(world: World) -> None:
    slow = subflow("10.1.0.1")
    world.step(connection(1, slow, subflow("10.2.0.1")))
    assert {ends: throttle.rate for ends, throttle in world.steering.caps.items()} == {slow.ends: SLOW}
    world.operator.set(cap("ethernet", Rate.parse("2mbit")))
    world.step()
    assert world.steering.caps[slow.ends].rate == Rate.parse("2mbit")
    world.step(ended=1)
    assert world.steering.caps == {}


@pytest.mark.parametrize("backup", [False, True])
def test_priority_that_the_kernel_knows_outweighs_that_of_the_sniffer(world: World, backup: bool) -> None:
    seen = replace(subflow("10.1.0.1"), backup=not backup)
    world.steering.priorities[seen.ends] = backup
    world.step(connection(1, seen, subflow("10.2.0.1")))
    assert (seen.ends in world.throttled) == (not backup)


@pytest.mark.parametrize(("healthy", "ailment"), [(Health(rtt=0.4), Ailment.RTT), (Health(), Ailment.DATA_ACKS)])
def test_cap_ends_while_the_preferred_path_is_sick(world: World, healthy: Health, ailment: Ailment) -> None:
    networks = replace(WIFI, healthy=healthy), ETHERNET
    world.running.config = replace(world.running.config, networks=networks)
    world.step(client(1), client(2))
    assert world.throttled == {capped(1), capped(2)}
    world.kernel.sick = {subflow("10.2.0.1").ends: ailment}
    world.step()
    assert world.throttled == {capped(2)}
    world.step(client(1))  # the sniffer, which knows nothing of it, has news
    assert world.throttled == {capped(2)}
    world.kernel.sick = {}
    world.step()
    assert world.throttled == {capped(1), capped(2)}


def test_path_that_was_sick_stays_gone_when_the_whole_table_comes(world: World) -> None:
    world.running.config = replace(world.running.config, networks=(replace(WIFI, healthy=Health(rtt=0.4)), ETHERNET))
    world.kernel.sick = {subflow("10.2.0.1").ends: Ailment.RTT}
    world.step(client(1), client(2))
    world.kernel.sick = {}
    world.show(client(2))
    assert set(world.loop.snapshot.connections) == {Token(2)}


def test_loop_restores_the_qdisc_when_the_last_class_has_lingered(world: World) -> None:
    world.step(client(1))
    world.step(ended=1)
    assert world.kernel.state.qdisc.htb is not None
    world.clock.now += 5.1
    world.wait_until_due()
    assert world.kernel.state.qdisc.htb is None
    assert not world.kernel.state.assignments


def test_loop_frees_all_subflows_without_the_sniffer_and_logs_no_end(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    both_ways = (WIFI, ETHERNET.with_rates({RateKind.UPLINK_CAP: SLOW}))
    world.running.config = replace(world.running.config, networks=both_ways)
    world.step(client(1))
    assert {*world.uplinks.throttled} == world.throttled == {capped(1)}
    world.source.update = TableUpdate(problem="no service answers")
    world.step()
    assert (world.throttled, world.kernel.throttled, {*world.uplinks.throttled}) == (set(), {}, set())
    assert world.loop.snapshot.sniffer.problem == "no service answers"
    lines = [line for line in caplog.messages if line.startswith("free ")]
    assert [line.partition(" reason=")[2] for line in lines] == ["'the sniffer does not answer'"] * 2
    world.step(client(2))
    world.step(ended=2)
    assert "reason='subflow ended'" in caplog.messages[-1]


def test_loop_release_leaves_the_kernel_as_it_was(world: World) -> None:
    world.step(client(1))
    assert world.loop.release() == ()
    assert world.kernel.state == KernelState(pacing=PacingState({}))


def test_loop_adopts_the_classes_of_an_earlier_instance(tmp_path: Path) -> None:
    first = World(tmp_path)
    first.step(client(1), client(2))
    first.settle()
    second = World(tmp_path, kernel=first.kernel)
    second.loop.adopt({capped(2): 2, capped(1): 3})
    second.kernel.state = replace(second.kernel.state, assignments={4: AssignmentState({capped(2): 2, capped(1): 3})})
    second.step(client(1), client(2))
    assert {(one.latency, one.adopted) for one in second.loop.snapshot.throttled.values()} == {(None, True)}
    assert dict(second.loop.snapshot.applied.assignments) == {capped(2): 2, capped(1): 3}


# What the kernel refuses, and who waits for it


def test_refused_class_delays_no_other_client(world: World) -> None:
    world.step(client(100))
    world.kernel.refuse = (AddClass(3, Rate.parse("10gbit")), AddClass(3, SLOW))
    world.step(client(1))
    for number in range(2, 12):
        world.step(client(number))
        assert capped(number) in world.throttled, "without any time passing"
    assert capped(1) not in world.throttled
    assert world.errors == ["AddClass: ENOMEM"]


@pytest.fixture
def refused(world: World) -> World:
    """Refuses the class of client 1, beside that of client 100."""
    world.step(client(100))
    world.settle()
    world.kernel.refuse = (AddClass,)
    world.step(client(1))
    return world


def test_refused_class_does_not_delay_its_own_retry_by_others(refused: World) -> None:
    refused.kernel.refuse = ()
    refused.wait_until_due()
    assert refused.throttled == {capped(100), capped(1)}
    assert refused.errors == []


def test_retries_of_one_class_back_off_up_to_the_interval(refused: World) -> None:
    times = [refused.clock.now]
    for _ in range(7):
        tried = refused.wait_until_due()
        assert [type(operation) for operation in tried] == [ChangePaces, AddClass, ChangePaces]
        times.append(refused.clock.now)
    delays = [later - earlier for earlier, later in pairwise(times)]
    # First a full reconcile, in case it was refused because the kernel is not in the state that we believe.
    assert delays == pytest.approx([0.0, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0])


def test_retries_read_the_kernel_no_more_than_a_quiet_loop(refused: World) -> None:
    refused.wait_until_due()
    reads = refused.kernel.reads
    for _ in range(3):
        refused.wait_until_due()
    assert refused.kernel.reads - reads <= 2


def test_refused_class_is_forgotten_when_its_share_has_lingered(refused: World) -> None:
    refused.step(ended=1)
    refused.step(after=5.1)
    assert refused.errors == []
    assert AddClass not in map(type, refused.step(after=10 * INTERVAL))


def test_refused_assignment_frees_only_its_subflow_of_a_share(world: World) -> None:
    shared = replace(ETHERNET, per=Per.NETWORK)
    world.running.config = replace(world.running.config, networks=(WIFI, shared))
    world.step(client(1))
    world.kernel.refuse = (ChangeAssignments,)
    world.step(client(2))
    assert world.throttled == {capped(1)}
    assert world.kernel.throttled.keys() == {capped(1)}
    world.kernel.refuse = ()
    world.wait_until_due()
    assert world.throttled == {capped(1), capped(2)}


def test_refused_pace_keeps_the_cap_and_is_retried(world: World) -> None:
    world.step(client(100))
    world.kernel.refuse = (ChangePaces,)
    world.step(client(1))
    assert capped(1) in world.throttled
    assert capped(1) not in world.loop.snapshot.applied.paces
    world.kernel.refuse = ()
    world.wait_until_due()
    assert capped(1) in world.loop.snapshot.applied.paces
    assert world.errors == []


def test_refused_rate_change_frees_the_subflow(world: World) -> None:
    world.step(client(1), client(2))
    world.settle()
    world.kernel.refuse = (ChangeClass(2, Rate.parse("2mbit")),)
    world.operator.set(cap("ethernet", Rate.parse("2mbit")))
    world.step()
    assert world.throttled == {capped(2)}
    assert world.kernel.throttled == {capped(2): Rate.parse("2mbit")}


class Removal:
    """Equals every operation that removes assignments."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChangeAssignments) and bool(other.remove)


def test_refused_removal_of_an_assignment_frees_its_subflow_alone(world: World) -> None:
    """The freed subflow has its class in common with another one, which must not bring it back."""
    world.step(client(9), client(1), connection(2, subflow("10.1.0.1", 50000), subflow("10.2.0.1", 50000)))
    world.settle()
    world.kernel.refuse = (Removal(),)
    world.step(connection(1, subflow("10.1.0.1")))
    freed, other = capped(1), ends("10.1.0.1", 50000)
    for _ in range(50):
        assert freed not in world.kernel.throttled
        assert capped(9) in world.kernel.throttled
        assert freed not in world.throttled
        assert world.errors == ["ChangeAssignments: ENOMEM"]
        world.step(after=0.1)
    world.kernel.refuse = ()
    world.settle()
    assert world.kernel.throttled.keys() == world.throttled == {capped(9), other}
    assert world.errors == []


def test_many_refused_classes_are_a_bounded_report(world: World) -> None:
    refused = [AddClass(minor, rate) for minor in range(2, 200) for rate in (SLOW, Rate.parse("10gbit"))]
    world.kernel.refuse = tuple(refused)
    world.kernel.numbered = True
    world.step(*map(client, range(1, 150)))
    assert len(world.errors) == 21
    assert world.errors[-1] == "and 129 more errors"
    world.kernel.refuse = ()
    world.settle()
    assert (len(world.throttled), world.errors) == (149, [])


def test_refusal_to_free_is_answered_by_a_full_reconcile_at_once(world: World) -> None:
    world.step(client(1), client(2))
    world.settle()
    reads = world.kernel.reads
    world.kernel.refuse = (ChangeAssignments, DeleteClass)
    world.step(connection(1, subflow("10.1.0.1")))
    assert world.kernel.reads > reads
    assert capped(1) not in world.kernel.throttled


def test_refused_htb_makes_every_change_wait_for_its_back_off(world: World) -> None:
    world.kernel.refuse = (InstallHtb,)
    assert InstallHtb in map(type, world.step(client(1)))
    assert world.step(client(2)) == []
    assert world.throttled == set()
    assert world.errors == ["InstallHtb: ENOMEM"]
    world.kernel.refuse = ()
    world.wait_until_due()
    assert world.throttled == {capped(1), capped(2)}
    assert world.errors == []


def test_obstacle_is_reported_and_retried_until_it_is_gone(world: World) -> None:
    world.kernel.replace_qdisc(obstacle="eth0: root qdisc cake")
    world.step(client(1), after=2 * INTERVAL)
    assert (world.errors, world.throttled) == (["eth0: root qdisc cake"], set())
    world.kernel.replace_qdisc(obstacle=None)
    world.wait_until_due()
    assert (world.errors, world.throttled) == ([], {capped(1)})


def test_unreadable_kernel_frees_all_subflows_until_it_answers(world: World) -> None:
    world.step(client(1))
    world.kernel.reads_refused = 3
    world.loop.note_kernel_change()
    world.step(after=INTERVAL)
    assert (world.throttled, world.kernel.throttled) == (set(), {})
    world.wait_until_due()
    assert (world.throttled, world.errors) == ({capped(1)}, [])


# When the whole kernel is read


def test_notification_is_followed_by_a_full_reconcile(world: World) -> None:
    world.step(client(1))
    world.settle()
    htb = world.kernel.state.qdisc.htb
    assert htb is not None
    world.kernel.replace_qdisc(htb=replace(htb, classes={}))
    world.loop.note_kernel_change()
    assert AddClass in map(type, world.step(after=0.1))
    assert world.kernel.throttled == {capped(1): SLOW}


def test_quick_check_that_fails_is_followed_by_a_full_reconcile(world: World) -> None:
    world.step(client(1))
    world.settle()
    checks = world.kernel.quick_checks
    world.kernel.state = replace(world.kernel.state, assignments={})
    assert MakeAssignments in map(type, world.wait_until_due())
    assert world.kernel.quick_checks > checks
    assert world.kernel.throttled == {capped(1): SLOW}


def test_quick_check_goes_on_beside_a_refused_class(world: World) -> None:
    world.step(client(1))
    world.settle()
    world.kernel.refuse = (AddClass,)
    world.step(client(2))
    world.settle()
    world.kernel.state = replace(world.kernel.state, assignments={})
    for _ in range(12):
        world.step(after=0.1)
    assert world.kernel.throttled.keys() == {capped(1)}


def test_program_that_undoes_our_work_is_answered_with_back_off(world: World) -> None:
    world.step(client(1))
    world.settle()
    repairs = 0
    for _ in range(100):
        if world.kernel.state.qdisc.htb is not None:
            world.kernel.replace_qdisc(htb=None)
        world.loop.note_kernel_change()
        repairs += InstallHtb in map(type, world.step(after=0.1))
    assert 5 <= repairs <= 14


def test_loop_wakes_by_itself_for_the_next_thing_due(world: World) -> None:
    assert world.loop.next_deadline <= world.clock.now + INTERVAL
    world.operator.set(cap("ethernet", SLOW, world.clock.now + 0.3))
    world.step()
    assert world.loop.next_deadline == pytest.approx(world.clock.now + 0.3)
    world.operator.pause(Pause(world.clock.now + 0.2))
    world.step()
    assert world.loop.next_deadline == pytest.approx(world.clock.now + 0.2)
    assert not math.isinf(world.loop.next_deadline)


def test_loop_takes_a_renamed_client_in_portions_and_others_between_them(world: World) -> None:
    def one(number: int, *more: str) -> Connection:
        return connection(number, *(subflow(address, number) for address in ("10.1.1.9", "10.2.1.9", *more)))

    world.step(*map(one, range(1000, 2200)))
    world.settle()
    world.step(one(3000, "10.1.1.8"))
    for _ in range(2):
        assert world.loop.next_deadline == pytest.approx(world.clock.now + 0.02)
        assert len(set(world.loop.snapshot.plan.assignments.values())) == 2
        world.step(client(1), after=0.02)
        assert capped(1) in world.throttled
        world.step(ended=1)
    world.settle()
    assert world.loop.next_deadline > world.clock.now + 0.02
    assert len(set(world.loop.snapshot.plan.assignments.values())) == 1
    assert len(world.throttled) == 1202


# The operator, and what others see


def test_pause_frees_all_subflows_and_its_end_throttles_again(world: World) -> None:
    world.step(client(1))
    world.operator.pause(Pause(world.clock.now + 60))
    world.step()
    assert (world.throttled, world.kernel.throttled) == (set(), {})
    world.step(after=61)
    assert world.throttled == {capped(1)}


def test_latency_is_that_of_a_join_and_of_nothing_else(world: World) -> None:
    def latency() -> float | None:
        (one,) = world.loop.snapshot.throttled.values()
        return None if one.latency is None else round(one.latency, 3)

    world.step(connection(9, subflow("10.2.0.9")))
    joined_at = world.clock.now
    world.step(connection(1, subflow("10.1.0.1", at=joined_at), subflow("10.2.0.1", at=joined_at)), after=0.25)
    assert latency() == 0.25
    world.operator.pause(Pause(None))
    world.step(after=5)
    world.operator.pause(None)
    world.step(after=5)
    assert latency() is None
    world.operator.set(cap("ethernet", None))
    world.step(after=5)
    world.operator.reset("ethernet")
    world.step(after=5)
    assert latency() is None
    world.source.update = TableUpdate(problem="no service answers")
    world.step(after=5)
    world.step(client(1), after=5)
    assert latency() is None


def test_latency_ends_when_steering_holds_the_subflow_back(world: World) -> None:
    world.step(connection(9, subflow("10.2.0.9")))
    at = world.clock.now
    opened = subflow("10.1.0.1", at=at), subflow("10.2.0.1", at=at + 0.5), subflow("10.2.0.2", at=at + 0.9)
    world.steering.held[opened[0].ends] = at + 0.625
    world.step(connection(1, *opened), after=2)
    (one,) = world.loop.snapshot.throttled.values()
    assert one.latency is not None
    assert round(one.latency, 3) == 0.125, "the SYN before it is the reason, not the latest"


def test_latency_of_connections_older_than_the_daemon_is_not_known(tmp_path: Path) -> None:
    world = World(tmp_path, clock=ManualClock(now=300.0))
    world.step(connection(1, subflow("10.1.0.1", at=10.0), subflow("10.2.0.1", at=20.0)))
    assert [(one.latency, one.adopted) for one in world.loop.snapshot.throttled.values()] == [(None, False)]


def test_request_is_answered_when_its_change_is_applied(world: World) -> None:
    inbox = Inbox()
    world.step(client(1))
    world.settle()
    override = cap("ethernet", Rate.parse("3mbit"))

    def ask() -> None:
        inbox.ask(SetRate(override))
        assert world.kernel.throttled == {capped(1): Rate.parse("3mbit")}

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        world.loop.step(inbox.wait(10))
        asked.result(10)


def test_request_that_is_refused_changes_nothing(world: World) -> None:
    inbox = Inbox()
    override = cap("nowhere", SLOW)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(inbox.ask, SetRate(override))
        world.loop.step(inbox.wait(10))
        with pytest.raises(UserError, match="no such access network"):
            asked.result(10)
    assert world.loop.snapshot.operator.overrides == ()


def test_snapshot_has_the_same_networks_until_they_change(world: World) -> None:
    world.step(client(1))
    before = world.loop.snapshot
    world.running.take(configuration((replace(WIFI), replace(ETHERNET))), world.clock.time())
    for _ in range(2):
        world.step()
        assert world.loop.snapshot.networks is before.networks
        assert world.loop.snapshot.terms is before.terms
    world.operator.set(cap("ethernet", None))
    world.step()
    assert world.loop.snapshot.networks is before.networks
    assert world.loop.snapshot.terms != before.terms
    assert world.kernel.pacing.situation.networks == (WIFI, ETHERNET.with_rates({RateKind.CAP: None}))


def test_snapshot_never_changes_afterwards(world: World) -> None:
    world.step(client(1))
    before = world.loop.snapshot
    kept = (before.plan.assignments, before.applied.assignments, before.connections, before.decisions, before.throttled)
    sizes = [len(one) for one in kept]
    world.step(client(2))
    world.step(ended=1)
    assert [len(one) for one in kept] == sizes == [1] * 5
    assert all(isinstance(one, Map) for one in kept)
    assert dict(before.plan.assignments) == {capped(1): 2}


def test_pacing_that_becomes_unavailable_is_reported_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.step(client(1))
    world.kernel.state = replace(world.kernel.state, pacing=PacingState(None, "no cgroup2"))
    world.kernel.pacing.state = FeatureState("no cgroup2")
    for _ in range(30):
        world.step(after=0.1)
    assert world.loop.snapshot.problem_of(FeatureName.PACING) == "no cgroup2"
    assert world.throttled == {capped(1)}
    assert sum("no cgroup2" in record.message for record in caplog.records) == 1


def test_subflow_freed_by_a_refusal_is_logged_as_not_applied(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world.step(client(1))
    world.kernel.state = KernelState(pacing=PacingState({}))
    world.kernel.refuse = (InstallHtb,)
    world.loop.note_kernel_change()
    world.settle()
    assert world.throttled == set()
    (line,) = [message for message in caplog.messages if message.startswith("free ")]
    assert line.endswith(" network=ethernet direction=downlink reason='not applied; see status'")


def test_restore_of_another_interface_is_retried_and_delays_no_subflow(world: World) -> None:
    world.kernel.state = replace(world.kernel.state, qdisc=QdiscState(pending_elsewhere=("wan0",)))
    world.kernel.refuse = (RestoreQdisc("wan0"),)
    world.step(after=10 * INTERVAL)
    assert world.errors == ["RestoreQdisc: ENOMEM"]
    world.step(client(1))
    assert world.throttled == {capped(1)}
    world.kernel.refuse = ()
    world.wait_until_due()
    assert world.errors == []


# The kernel program


def test_kernel_decides_while_the_sniffer_answers_and_there_is_no_pause(world: World) -> None:
    world.step(client(1))
    assert world.kernel.pacing.situation.throttling
    assert world.kernel.pacing.situation.networks == world.loop.snapshot.networks != ()
    world.operator.pause(Pause(None))
    world.step()
    assert not world.kernel.pacing.situation.throttling
    world.operator.pause(None)
    world.step()
    assert world.kernel.pacing.situation.throttling
    world.source.update = TableUpdate(problem="no service answers")
    world.step()
    assert not world.kernel.pacing.situation.throttling


def test_kernel_decides_nothing_while_htb_is_refused(world: World) -> None:
    world.kernel.refuse = (InstallHtb,)
    world.step(client(1))
    world.step()
    assert not world.kernel.pacing.situation.throttling
    world.kernel.refuse = ()
    world.settle()
    assert world.kernel.pacing.situation.throttling


def test_discards_are_prevented_unless_the_operator_pauses(world: World) -> None:
    world.source.update = TableUpdate(problem="no service answers")
    world.kernel.refuse = (InstallHtb,)
    world.step()
    situation = world.kernel.discards.situation
    assert (situation.networks, situation.paused) == (world.loop.snapshot.networks, False)
    assert situation.networks
    world.operator.pause(Pause(None))
    world.step()
    assert world.kernel.discards.situation.paused


def test_closed_subflows_are_passed_on_once(world: World) -> None:
    closed = ClosedSubflow(Token(1), capped(1), 1, SocketTotals(1000))
    world.kernel.closed = [closed]
    world.step()
    world.step()
    assert world.closed == [closed]


def test_loop_goes_on_when_closed_subflows_cannot_be_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[ClosedSubflow]:
        raise KernelError("read the ring buffer", errno.ENOMEM)

    monkeypatch.setattr(world.kernel, "closed_subflows", fail)
    world.step(client(1))
    assert world.loop.snapshot.throttled
    assert world.closed == []


# Uplinks


@pytest.fixture
def uplinks(world: World) -> ModelUplinks:
    """Those of a world that caps what clients send over Ethernet, and nothing that they receive."""
    capped_uplinks = ETHERNET.with_rates({RateKind.CAP: None, RateKind.UPLINK_CAP: SLOW})
    world.running.config = replace(world.running.config, networks=(WIFI, capped_uplinks))
    return world.uplinks


def test_loop_caps_an_uplink_and_frees_it_with_the_preferred_path(world: World, uplinks: ModelUplinks) -> None:
    assert world.step(client(1)) == []
    assert {*uplinks.throttled} == {*world.loop.snapshot.uplinks} == {capped(1)}
    world.step(connection(1, subflow("10.1.0.1")))
    assert {*uplinks.throttled} == {*world.loop.snapshot.uplinks} == set()


def test_loop_frees_uplinks_without_the_sniffer_and_while_paused(world: World, uplinks: ModelUplinks) -> None:
    world.step(client(1))
    world.operator.pause(Pause(None))
    world.step()
    assert uplinks.throttled == {}
    world.operator.pause(None)
    world.step()
    assert {*uplinks.throttled} == {capped(1)}
    uplinks.tried.clear()
    world.source.update = TableUpdate(problem="no service answers")
    world.step()
    assert uplinks.throttled == {}
    assert uplinks.tried == [{capped(1)}], "the subflow may live: its client is told"


def test_uplink_of_a_client_out_of_reach_is_forgotten_when_it_has_ended(world: World, uplinks: ModelUplinks) -> None:
    def check() -> frozenset[FourTuple]:
        world.step(after=INTERVAL)
        return uplinks.unreached

    world.step(client(1))
    world.step(connection(1, subflow("10.1.0.1")))
    uplinks.unreached = frozenset({capped(1)})
    assert check() == {capped(1)}
    world.source.update = TableUpdate(problem="no service answers")
    world.step()
    assert check() == {capped(1)}, "it may live"
    world.source.update = TableUpdate("epoch", 1, {}, problem=None)
    world.step()
    assert check() == set()


def test_rate_of_an_uplink_is_the_one_set_by_hand(world: World, uplinks: ModelUplinks) -> None:
    world.step(client(1))
    faster = Rate.parse("5mbit")
    world.operator.set(Override("ethernet", RateKind.UPLINK_CAP, faster, None))
    world.step()
    assert [throttle.rate for throttle in uplinks.throttled.values()] == [faster]


def test_refused_uplink_is_reported_and_tried_again(
    world: World, uplinks: ModelUplinks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    uplinks.refuse = {capped(1)}
    world.step(client(1), client(2))
    assert {*world.loop.snapshot.uplinks} == {capped(2)}
    assert world.errors == ["throttle 10.1.0.1:40000: E2BIG"]
    uplinks.refuse.clear()
    world.step(after=world.loop.next_deadline - world.clock.now)
    assert {*uplinks.throttled} == {capped(1), capped(2)}
    assert world.errors == []
    assert "network=ethernet direction=uplink rate=" in caplog.text


def test_loop_puts_a_deleted_uplink_filter_back_and_says_so(
    world: World, uplinks: ModelUplinks, caplog: pytest.LogCaptureFixture
) -> None:
    world.step(client(1))
    uplinks.has_filter = False
    world.loop.note_kernel_change()
    world.step()
    assert uplinks.has_filter
    assert "another program had changed kernel objects; repaired by 1 operations" in caplog.text


def test_windows_that_cannot_be_bounded_are_logged_and_counted(
    world: World, uplinks: ModelUplinks, caplog: pytest.LogCaptureFixture
) -> None:
    def errors() -> float:
        return REGISTRY.get_sample_value("mptcpthrottle_errors_total", {"stage": "kernel"}) or 0.0

    caplog.set_level("DEBUG")
    before = errors()
    uplinks.window_problem = "the windows of 1 uplinks are not bounded: ss -t: ENOMEM"
    world.step(client(1))
    assert caplog.messages.count(uplinks.window_problem) == errors() - before == 1


def test_idle_loop_with_a_capped_uplink_wakes_up_once_an_interval(world: World, uplinks: ModelUplinks) -> None:
    world.step(client(1), after=0.3 * INTERVAL)
    times = []
    for _ in range(8):
        world.clock.now = world.loop.next_deadline
        world.loop.step()
        times.append(world.clock.now)
    assert uplinks.throttled
    assert all(after - before > 0.9 * INTERVAL for before, after in pairwise(times[2:]))


def test_loop_release_frees_uplinks(world: World, uplinks: ModelUplinks) -> None:
    world.step(client(1))
    assert world.loop.release() == ()
    assert (uplinks.throttled, uplinks.has_filter) == ({}, False)
    world.step(client(2))
    uplinks.refuse = {"release"}
    assert world.loop.release() == ("release: ENOMEM",)


def test_policed_uplink_is_reported_with_its_reason_and_logged_once(
    world: World, uplinks: ModelUplinks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world.step(client(1))
    uplinks.policed = frozenset({capped(1)})
    for _ in range(3):
        world.step(after=INTERVAL)
    view = View(world.loop.snapshot, Enforcement(), {}, Now(0.0, 0.0))
    (connection_status,) = connections(view)["connections"]
    shown = {
        one["network"]: (one["uplink"]["policed"], one["uplink"]["reason"]) for one in connection_status["subflows"]
    }
    assert shown == {"ethernet": (True, f"wifi is live; {KEEPS_SENDING}"), "wifi": (False, "network has no cap")}
    assert caplog.text.count("policed client=10.1.0.1:40000 direction=uplink") == 1
