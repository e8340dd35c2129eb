"""Given this kernel and this plan, these operations; and whatever fails, nobody is half-capped."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_kernel import apply, dangling, held
from tables import ends

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import FourTuple
from mptcp_throttle.units import Rate
from mptcp_throttled.desired.kernel_plan import UNTOUCHED, KernelPlan
from mptcp_throttled.reconcile.kernel_state import (
    ChainState,
    HtbState,
    KernelState,
    PacingState,
    QdiscState,
    QuickCheck,
)
from mptcp_throttled.reconcile.operations import (
    AddClass,
    ChangeClass,
    ChangeMarks,
    ChangePaces,
    ClassOperation,
    DeleteClass,
    InstallHtb,
    MakeChain,
    Operation,
    RemoveChain,
    RestoreQdisc,
)
from mptcp_throttled.reconcile.reconciler import Outcome, Reconciler, diff

SLOW, FAST = Rate.parse("1mbit"), Rate.parse("5mbit")
V4, V4B, V6 = ends("10.1.0.2"), ends("10.1.0.3"), ends("fd00:1::2")
ONE = KernelPlan(True, 0, {2: SLOW}, {V4: 2})
ONE_MARK = {4: ChainState({V4: 2})}
ONE_IN_KERNEL = KernelState(QdiscState(HtbState(0, True, {2: SLOW})), ONE_MARK)


class ModelKernel:
    """A kernel in memory that checks what the real one would, and refuses what it is told to refuse.

    `refuse` holds types of operations and single ones; with `reads_refused`, that many reads fail first.
    """

    def __init__(
        self,
        state: KernelState | None = None,
        *refuse: type[Operation] | Operation,
        reads_refused: int = 0,
    ) -> None:
        self.state = state or KernelState()
        self.refuse = refuse
        self.reads_refused = reads_refused
        self.dangling = False

    def read(self) -> KernelState:
        if self.reads_refused:
            self.reads_refused -= 1
            raise KernelError("unreadable", errno.ENOBUFS)
        return self.state

    def quick_check(self) -> QuickCheck:
        state = self.read()
        counts = {version: None if chain.altered else len(chain.marks) for version, chain in state.chains.items()}
        return QuickCheck(counts, state.pacing)

    def fail_open(self) -> None:
        if self.state.qdisc.htb is not None:
            self.apply(RestoreQdisc())

    def apply(self, operation: Operation) -> None:
        if operation in self.refuse or type(operation) in self.refuse:
            raise KernelError(type(operation).__name__, errno.EPERM)
        self.state = apply(self.state, operation)
        self.dangling |= dangling(self.state)

    def change_classes(self, operations: Sequence[ClassOperation]) -> list[KernelError | None]:
        return [self._refusal(operation) for operation in operations]

    def _refusal(self, operation: ClassOperation) -> KernelError | None:
        try:
            self.apply(operation)
        except KernelError as error:
            return error
        return None

    @property
    def held(self) -> dict[FourTuple, Rate]:
        return held(self.state)


@pytest.mark.parametrize(
    ("actual", "plan", "operations"),
    [
        (KernelState(), UNTOUCHED, ()),
        (ONE_IN_KERNEL, ONE, ()),
        (KernelState(), ONE, (InstallHtb(0), AddClass(2, SLOW), MakeChain(4, {V4: 2}))),
        (ONE_IN_KERNEL, UNTOUCHED, (RemoveChain(4), RestoreQdisc())),
        (ONE_IN_KERNEL, replace(ONE, classes={2: FAST}), (ChangeClass(2, FAST),)),
        (
            ONE_IN_KERNEL,
            KernelPlan(True, 0, {2: SLOW, 3: SLOW}, {V4: 2, V6: 3}),
            (AddClass(3, SLOW), MakeChain(6, {V6: 3})),
        ),
        (
            ONE_IN_KERNEL,
            KernelPlan(True, 0, {3: SLOW}, {V4: 3}),
            (AddClass(3, SLOW), ChangeMarks(4, {V4: 3}, {V4: 2}), DeleteClass(2)),
        ),
        (
            KernelState(QdiscState(), ONE_MARK),
            ONE,
            (InstallHtb(0), AddClass(2, SLOW)),
        ),
        (
            KernelState(QdiscState(HtbState(0, False, {2: SLOW})), ONE_MARK),
            ONE,
            (RestoreQdisc(), InstallHtb(0), AddClass(2, SLOW)),
        ),
        (KernelState(QdiscState(HtbState(0, True, {2: None})), ONE_MARK), ONE, (ChangeClass(2, SLOW, mend=True),)),
        (
            replace(ONE_IN_KERNEL, chains={4: ChainState({V4: 2}, altered=True)}),
            ONE,
            (MakeChain(4, {V4: 2}),),
        ),
        (
            replace(ONE_IN_KERNEL, chains={4: ChainState({V4: 2}, altered=True)}),
            replace(ONE, marks={}),
            (RemoveChain(4),),
        ),
        (ONE_IN_KERNEL, replace(ONE, marks={V4: 2, V4B: 2}), (ChangeMarks(4, {V4B: 2}, {}),)),
    ],
)
def test_the_operations_from_one_state_to_another(
    actual: KernelState, plan: KernelPlan, operations: tuple[Operation, ...]
) -> None:
    assert diff(actual, plan) == operations


_CLASSES = st.dictionaries(st.integers(2, 5), st.sampled_from([SLOW, FAST]), max_size=4)


@st.composite
def plans(draw: st.DrawFn) -> KernelPlan:
    classes = draw(_CLASSES)
    if not classes:
        return UNTOUCHED
    marked = draw(st.sets(st.sampled_from([V4, V4B, V6])))
    marks = {e: draw(st.sampled_from(sorted(classes))) for e in sorted(marked, key=str)}
    return KernelPlan(True, 0, classes, marks, {e: draw(st.sampled_from([1000, 2000])) for e in marks})


@given(plans(), plans())
def test_every_plan_is_reached_from_every_other_and_no_mark_ever_dangles(first: KernelPlan, second: KernelPlan) -> None:
    kernel = ModelKernel(KernelState(pacing=PacingState({})))
    for plan in (first, second, UNTOUCHED):
        outcome = Reconciler(kernel).converge(plan)
        assert outcome.errors == ()
        assert outcome.in_force == plan
        assert diff(kernel.state, plan) == ()
        assert not kernel.dangling
    assert kernel.state.qdisc.htb is None


PACED = replace(ONE, paces={V4: 1000})


def test_sockets_slow_down_before_they_are_capped_and_speed_up_after() -> None:
    unpaced = KernelState(pacing=PacingState({}))
    assert diff(unpaced, PACED) == (
        ChangePaces({V4: 1000}, {}),
        InstallHtb(0),
        AddClass(2, SLOW),
        MakeChain(4, {V4: 2}),
    )
    paced = replace(ONE_IN_KERNEL, pacing=PacingState({V4: 1000}))
    assert diff(paced, PACED) == ()
    assert diff(paced, UNTOUCHED) == (RemoveChain(4), ChangePaces({}, {V4: 1000}), RestoreQdisc())


def test_where_sockets_cannot_be_paced_htb_holds_them_alone() -> None:
    kernel = ModelKernel(KernelState(pacing=PacingState(None, "no cgroup2")))
    outcome = Reconciler(kernel).converge(PACED)
    assert (outcome.errors, outcome.unpaced, outcome.in_force) == ((), "no cgroup2", ONE)


def test_a_pace_that_is_refused_is_reported_and_the_cap_holds_all_the_same() -> None:
    kernel = ModelKernel(KernelState(pacing=PacingState({})), ChangePaces)
    outcome = Reconciler(kernel).converge(PACED)
    assert (outcome.errors, outcome.in_force) == (("ChangePaces: EPERM",), ONE)


@pytest.mark.parametrize("refused", [InstallHtb, AddClass, MakeChain])
def test_what_the_kernel_refuses_leaves_its_subflows_uncapped_and_reported(refused: type[Operation]) -> None:
    kernel = ModelKernel(None, refused)
    outcome = Reconciler(kernel).converge(KernelPlan(True, 0, {2: SLOW}, {V4: 2, V6: 2}))
    assert outcome.errors == (f"{refused.__name__}: EPERM",)
    assert (outcome.in_force.marks, kernel.held) == ({}, {})
    assert not kernel.dangling
    kernel.refuse = ()
    assert Reconciler(kernel).converge(ONE).in_force == ONE


@pytest.mark.parametrize("refused", [ChangeClass, RemoveChain, ChangeMarks, DeleteClass])
@pytest.mark.parametrize(
    "plan",
    [
        UNTOUCHED,
        replace(ONE, marks={}),
        KernelPlan(True, 0, {2: FAST}, {V4: 2}),
        KernelPlan(True, 0, {3: FAST}, {V4: 3}),
    ],
)
def test_what_cannot_be_changed_or_lifted_holds_nobody_to_an_old_rate(
    refused: type[Operation], plan: KernelPlan
) -> None:
    kernel = ModelKernel(ONE_IN_KERNEL, refused)
    outcome = Reconciler(kernel).converge(plan)
    assert kernel.held in ({}, {V4: FAST})
    assert outcome.in_force.marks == {ends: plan.marks[ends] for ends in kernel.held}
    kernel.refuse = ()
    assert Reconciler(kernel).converge(plan).errors == ()
    assert diff(kernel.state, plan) == ()


def test_if_neither_marks_nor_classes_can_be_removed_the_qdisc_goes() -> None:
    kernel = ModelKernel(ONE_IN_KERNEL, ChangeMarks, DeleteClass)
    outcome = Reconciler(kernel).converge(KernelPlan(True, 0, {2: SLOW}, {}))
    assert kernel.state.qdisc.htb is None
    assert outcome.errors == ("ChangeMarks: EPERM", "DeleteClass: EPERM")


def test_a_refused_class_does_not_keep_others_from_theirs() -> None:
    kernel = ModelKernel(None, AddClass(2, SLOW))
    outcome = Reconciler(kernel).converge(KernelPlan(True, 0, {2: SLOW, 3: FAST}, {V4: 2, V4B: 3}))
    assert outcome.errors == ("AddClass: EPERM",)
    assert outcome.in_force.marks == {V4B: 3}
    assert kernel.state.chains == {4: ChainState({V4B: 3})}


def test_who_cannot_be_marked_is_not_paced_either() -> None:
    kernel = ModelKernel(KernelState(pacing=PacingState({})), MakeChain)
    outcome = Reconciler(kernel).converge(PACED)
    assert (outcome.in_force.marks, kernel.state.pacing.paces) == ({}, {})


def test_a_refused_mark_costs_nobody_else_his_cap() -> None:
    kernel = ModelKernel(ONE_IN_KERNEL, ChangeMarks(4, {V4B: 3}, {}))
    outcome = Reconciler(kernel).converge(KernelPlan(True, 0, {2: SLOW, 3: FAST}, {V4: 2, V4B: 3}))
    assert kernel.held == {V4: SLOW}
    assert (outcome.errors, outcome.in_force.marks) == (("ChangeMarks: EPERM",), {V4: 2})


def test_a_stray_chain_that_cannot_be_made_anew_goes() -> None:
    kernel = ModelKernel(replace(ONE_IN_KERNEL, chains={4: ChainState({V4: 2}, altered=True)}), MakeChain)
    outcome = Reconciler(kernel).converge(ONE)
    assert kernel.state.chains == {}
    assert (kernel.held, outcome.errors, outcome.in_force.marks) == ({}, ("MakeChain: EPERM",), {})


def test_a_class_that_cannot_be_deleted_and_holds_nobody_disturbs_nobody() -> None:
    kernel = ModelKernel(ONE_IN_KERNEL, DeleteClass)
    outcome = Reconciler(kernel).converge(KernelPlan(True, 0, {3: FAST}, {V4: 3}))
    assert kernel.held == {V4: FAST}
    assert (outcome.errors, outcome.in_force.marks) == (("DeleteClass: EPERM",), {V4: 3})


def test_an_operation_without_effect_is_noticed() -> None:
    class Deaf(ModelKernel):
        def apply(self, operation: Operation) -> None:
            if not isinstance(operation, AddClass):
                super().apply(operation)

    outcome = Reconciler(Deaf()).converge(ONE)
    assert any(error.startswith("not in force after it was applied: AddClass") for error in outcome.errors)
    assert outcome.in_force.marks == {}


def test_a_root_qdisc_that_cannot_be_put_back_is_an_obstacle_whether_anybody_is_to_be_held_or_not() -> None:
    kernel = ModelKernel(KernelState(QdiscState(obstacle="cake"), ONE_MARK))
    for plan in (ONE, UNTOUCHED):
        outcome = Reconciler(kernel).converge(plan)
        assert (outcome.obstacle, outcome.errors, outcome.in_force) == ("cake", (), UNTOUCHED)
        assert kernel.state.chains == {}


@pytest.mark.parametrize("plan", [ONE, UNTOUCHED])
def test_an_interface_that_is_not_ours_any_more_gets_its_qdisc_back(plan: KernelPlan) -> None:
    kernel = ModelKernel(KernelState(QdiscState(pending_elsewhere=("wan0",))))
    outcome = Reconciler(kernel).converge(plan)
    assert outcome.done[0] == RestoreQdisc("wan0")
    assert (outcome.errors, outcome.in_force) == ((), plan)


def test_an_interface_that_is_owed_its_own_qdisc_gets_ours_at_once_if_anybody_is_to_be_held() -> None:
    restore_pending = KernelState(QdiscState(restore_pending=True))
    assert diff(restore_pending, UNTOUCHED) == (RestoreQdisc(),)
    assert diff(restore_pending, ONE) == (InstallHtb(0), AddClass(2, SLOW), MakeChain(4, {V4: 2}))


def test_what_an_interface_is_owed_is_not_put_in_the_way_of_who_has_put_a_qdisc_there() -> None:
    # Between two readings somebody deletes his own root qdisc, to add it again.
    contested = KernelState(QdiscState(obstacle="htb 9:", restore_pending=True))
    outcome = Reconciler(ModelKernel(contested)).converge(ONE)
    assert (outcome.done, outcome.in_force) == ((), UNTOUCHED)
    assert Reconciler(ModelKernel(contested)).converge(UNTOUCHED).done == (RestoreQdisc(),)


def test_a_read_that_fails_once_is_repeated() -> None:
    kernel = ModelKernel(ONE_IN_KERNEL, reads_refused=2)
    assert Reconciler(kernel).converge(ONE) == Outcome((), (), ONE)


def test_a_kernel_that_cannot_be_read_holds_nobody() -> None:
    kernel = ModelKernel(ONE_IN_KERNEL, reads_refused=100)
    outcome = Reconciler(kernel).converge(ONE)
    assert outcome == Outcome((), ("unreadable: ENOBUFS",), UNTOUCHED)
    assert kernel.held == {}


TWO = KernelPlan(True, 0, {2: SLOW, 3: FAST}, {V4: 2, V4B: 3})


def test_to_advance_is_to_change_what_differs_without_a_look() -> None:
    kernel = ModelKernel(ONE_IN_KERNEL)
    reconciler = Reconciler(kernel)
    reconciler.converge(ONE)
    kernel.reads_refused = 100
    before, after = KernelPlan(True), KernelPlan(True, 0, {3: FAST}, {V4B: 3})
    outcome = reconciler.advance(TWO, before, after)
    assert outcome == Outcome((AddClass(3, FAST), ChangeMarks(4, {V4B: 3}, {})), (), TWO, compared=False)
    assert kernel.held == {V4: SLOW, V4B: FAST}


def test_where_advancing_is_refused_everything_is_compared_and_the_refusal_told() -> None:
    kernel = ModelKernel(ONE_IN_KERNEL, AddClass(3, FAST))
    before, after = KernelPlan(True), KernelPlan(True, 0, {3: FAST}, {V4B: 3})
    outcome = Reconciler(kernel).advance(TWO, before, after)
    assert (outcome.compared, outcome.errors) == (True, ("AddClass: EPERM",))
    assert (outcome.in_force.marks, kernel.held) == ({V4: 2}, {V4: SLOW})
    assert not kernel.dangling


PACED_IN_KERNEL: Final = replace(ONE_IN_KERNEL, pacing=PacingState({V4: 100}))


@pytest.mark.parametrize(
    ("after", "intact"),
    [
        (PACED_IN_KERNEL, True),
        (replace(PACED_IN_KERNEL, chains={}), False),
        (replace(PACED_IN_KERNEL, chains={4: ChainState({})}), False),
        (replace(PACED_IN_KERNEL, chains={4: ChainState({V4: 2, V4B: 2})}), False),
        (replace(PACED_IN_KERNEL, chains={4: ChainState({V4: 2}, altered=True)}), False),
        (replace(PACED_IN_KERNEL, chains={**PACED_IN_KERNEL.chains, 6: ChainState({})}), False),
        (replace(PACED_IN_KERNEL, pacing=PacingState({})), False),
        (replace(PACED_IN_KERNEL, pacing=PacingState(None, "nobody listens")), False),
    ],
)
def test_a_glance_shows_what_is_gone_or_too_much(after: KernelState, intact: bool) -> None:
    kernel = ModelKernel(PACED_IN_KERNEL)
    reconciler, plan = Reconciler(kernel), replace(ONE, paces={V4: 100})
    reconciler.converge(plan)
    kernel.state = after
    assert reconciler.quick_check(plan) == intact


def test_after_an_advance_a_glance_expects_what_has_come() -> None:
    kernel = ModelKernel(ONE_IN_KERNEL)
    reconciler = Reconciler(kernel)
    reconciler.converge(ONE)
    six = KernelPlan(True, 0, {3: FAST}, {V6: 3})
    both = KernelPlan(True, 0, {2: SLOW, 3: FAST}, {V4: 2, V6: 3})
    reconciler.advance(both, KernelPlan(True), six)
    assert reconciler.quick_check(both)
    assert not reconciler.quick_check(ONE)


def test_where_nobody_is_held_a_glance_expects_nothing() -> None:
    kernel = ModelKernel()
    reconciler = Reconciler(kernel)
    reconciler.converge(UNTOUCHED)
    assert reconciler.quick_check(UNTOUCHED)
    kernel.state = KernelState(chains={4: ChainState({})})
    assert not reconciler.quick_check(UNTOUCHED)


def test_what_cannot_be_glanced_at_is_not_taken_for_intact() -> None:
    kernel = ModelKernel(ONE_IN_KERNEL)
    reconciler = Reconciler(kernel)
    reconciler.converge(ONE)
    kernel.reads_refused = 1
    assert not reconciler.quick_check(ONE)
