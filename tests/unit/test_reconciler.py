"""Given this kernel and this plan, these operations; and whatever is refused, no subflow is half throttled."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from examples import ends, kernel_plan
from hypothesis import given
from hypothesis import strategies as st
from model_kernel import ModelKernel

from mptcp_throttle.model import FourTuple
from mptcp_throttle.units import Rate
from mptcp_throttled.enforcing.diff import diff
from mptcp_throttled.enforcing.reconciler import Reconciler
from mptcp_throttled.enforcing.refused_objects import KernelObject, ObjectKind
from mptcp_throttled.vocabulary.kernel_plan import UNTOUCHED, KernelPlan
from mptcp_throttled.vocabulary.kernel_state import AssignmentState, HtbState, KernelState, PacingState, QdiscState
from mptcp_throttled.vocabulary.operations import (
    AddClass,
    ChangeAssignments,
    ChangeClass,
    ChangePaces,
    DeleteClass,
    InstallHtb,
    MakeAssignments,
    Operation,
    OtherOperation,
    RemoveAssignments,
    RestoreQdisc,
)

SLOW, FAST = Rate.parse("1mbit"), Rate.parse("5mbit")
V4, V4B, V6 = ends("10.1.0.2"), ends("10.1.0.3"), ends("fd00:1::2")
ONE = kernel_plan({2: SLOW}, {V4: 2})
ONE_MARK = {4: AssignmentState({V4: 2})}
ONE_IN_KERNEL = KernelState(QdiscState(HtbState(0, True, {2: SLOW})), ONE_MARK)
ALTERED = replace(ONE_IN_KERNEL, assignments={4: AssignmentState({V4: 2}, altered=True)})


@pytest.mark.parametrize(
    ("actual", "plan", "operations"),
    [
        (KernelState(), UNTOUCHED, ()),
        (ONE_IN_KERNEL, ONE, ()),
        (KernelState(), ONE, (InstallHtb(0), AddClass(2, SLOW), MakeAssignments(4, {V4: 2}))),
        (ONE_IN_KERNEL, UNTOUCHED, (RemoveAssignments(4), RestoreQdisc())),
        (ONE_IN_KERNEL, kernel_plan({2: FAST}, {V4: 2}), (ChangeClass(2, FAST),)),
        (
            ONE_IN_KERNEL,
            kernel_plan({2: SLOW, 3: SLOW}, {V4: 2, V6: 3}),
            (AddClass(3, SLOW), MakeAssignments(6, {V6: 3})),
        ),
        (
            ONE_IN_KERNEL,
            kernel_plan({3: SLOW}, {V4: 3}),
            (AddClass(3, SLOW), ChangeAssignments(4, {V4: 3}, {V4: 2}), DeleteClass(2)),
        ),
        (KernelState(QdiscState(), ONE_MARK), ONE, (InstallHtb(0), AddClass(2, SLOW))),
        (
            KernelState(QdiscState(HtbState(0, False, {2: SLOW})), ONE_MARK),
            ONE,
            (RestoreQdisc(), InstallHtb(0), AddClass(2, SLOW)),
        ),
        (
            KernelState(QdiscState(HtbState(0, True, {2: None})), ONE_MARK),
            ONE,
            (ChangeClass(2, SLOW, replace_leaf=True),),
        ),
        (ALTERED, ONE, (MakeAssignments(4, {V4: 2}),)),
        (ALTERED, kernel_plan({2: SLOW}), (RemoveAssignments(4),)),
        (ONE_IN_KERNEL, kernel_plan({2: SLOW}, {V4: 2, V4B: 2}), (ChangeAssignments(4, {V4B: 2}, {}),)),
    ],
)
def test_diff_gives_the_operations_from_one_state_to_another(
    actual: KernelState, plan: KernelPlan, operations: tuple[Operation, ...]
) -> None:
    assert diff(actual, plan) == operations


_CLASSES = st.dictionaries(st.integers(2, 5), st.sampled_from([SLOW, FAST]), max_size=4)


@st.composite
def plans(draw: st.DrawFn) -> KernelPlan:
    classes = draw(_CLASSES)
    if not classes:
        return UNTOUCHED
    assigned = draw(st.sets(st.sampled_from([V4, V4B, V6])))
    assignments = {e: draw(st.sampled_from(sorted(classes))) for e in sorted(assigned, key=str)}
    return kernel_plan(classes, assignments, {e: draw(st.sampled_from([1000, 2000])) for e in assignments})


@given(plans(), plans())
def test_diff_reaches_any_plan_without_an_assignment_to_a_missing_class(first: KernelPlan, second: KernelPlan) -> None:
    kernel = ModelKernel(KernelState(pacing=PacingState({})))
    for plan in (first, second, UNTOUCHED):
        outcome = Reconciler(kernel).full(plan)
        assert outcome.failures == ()
        assert outcome.applied == plan
        assert diff(kernel.state, plan) == ()
        assert not kernel.dangling
    assert kernel.state.qdisc.htb is None


PACED = kernel_plan({2: SLOW}, {V4: 2}, {V4: 1000})


def test_diff_paces_before_capping_and_unpaces_after_freeing() -> None:
    unpaced = KernelState(pacing=PacingState({}))
    assert diff(unpaced, PACED) == (
        ChangePaces({V4: 1000}, {}),
        InstallHtb(0),
        AddClass(2, SLOW),
        MakeAssignments(4, {V4: 2}),
    )
    paced = replace(ONE_IN_KERNEL, pacing=PacingState({V4: 1000}))
    assert diff(paced, PACED) == ()
    assert diff(paced, UNTOUCHED) == (RemoveAssignments(4), ChangePaces({}, {V4: 1000}), RestoreQdisc())


@pytest.mark.parametrize(
    ("pacing", "refuse", "failures"),
    [(PacingState(None, "no cgroup2"), (), ()), (PacingState({}), (ChangePaces,), ("ChangePaces: ENOMEM",))],
)
def test_reconcile_caps_where_sockets_cannot_be_paced(
    pacing: PacingState, refuse: tuple[type[Operation], ...], failures: tuple[str, ...]
) -> None:
    outcome = Reconciler(ModelKernel(KernelState(pacing=pacing), *refuse)).full(PACED)
    assert (outcome.failures, outcome.applied) == (failures, ONE)


@pytest.mark.parametrize("refused", [InstallHtb, AddClass, MakeAssignments])
def test_reconcile_frees_and_reports_what_the_kernel_refuses(refused: type[Operation]) -> None:
    kernel = ModelKernel(None, refused)
    outcome = Reconciler(kernel).full(kernel_plan({2: SLOW}, {V4: 2, V6: 2}))
    assert outcome.failures == (f"{refused.__name__}: ENOMEM",)
    assert (dict(outcome.applied.assignments), kernel.throttled) == ({}, {})
    assert not kernel.dangling
    kernel.refuse = ()
    assert Reconciler(kernel).full(ONE).applied == ONE


@pytest.mark.parametrize("refused", [ChangeClass, RemoveAssignments, ChangeAssignments, DeleteClass])
@pytest.mark.parametrize(
    "plan", [UNTOUCHED, kernel_plan({2: SLOW}), kernel_plan({2: FAST}, {V4: 2}), kernel_plan({3: FAST}, {V4: 3})]
)
def test_reconcile_leaves_no_subflow_at_an_old_rate_if_a_change_is_refused(
    refused: type[Operation], plan: KernelPlan
) -> None:
    kernel = ModelKernel(ONE_IN_KERNEL, refused)
    outcome = Reconciler(kernel).full(plan)
    assert kernel.throttled in ({}, {V4: FAST})
    assert dict(outcome.applied.assignments) == {ends: plan.assignments[ends] for ends in kernel.throttled}
    kernel.refuse = ()
    assert Reconciler(kernel).full(plan).errors == ()
    assert diff(kernel.state, plan) == ()


def test_reconcile_removes_the_qdisc_if_nothing_else_frees() -> None:
    kernel = ModelKernel(ONE_IN_KERNEL, ChangeAssignments, DeleteClass)
    outcome = Reconciler(kernel).full(kernel_plan({2: SLOW}, {}))
    assert kernel.state.qdisc.htb is None
    assert set(outcome.failures) == {"ChangeAssignments: ENOMEM", "DeleteClass: ENOMEM"}


BOTH = kernel_plan({2: SLOW, 3: FAST}, {V4: 2, V4B: 3})


@pytest.mark.parametrize(
    ("actual", "refused", "plan", "assigned"),
    [
        (None, AddClass(2, SLOW), BOTH, {V4B: 3}),
        (ONE_IN_KERNEL, ChangeAssignments(4, {V4B: 3}, {}), BOTH, {V4: 2}),
        (ALTERED, MakeAssignments, ONE, {}),
        (ONE_IN_KERNEL, DeleteClass, kernel_plan({3: FAST}, {V4: 3}), {V4: 3}),
    ],
    ids=["a class", "an assignment", "an altered chain", "an empty class"],
)
def test_reconcile_keeps_the_caps_beside_what_is_refused(
    actual: KernelState | None, refused: Operation | type[Operation], plan: KernelPlan, assigned: dict[FourTuple, int]
) -> None:
    kernel = ModelKernel(actual, refused)
    outcome = Reconciler(kernel).full(plan)
    name = refused.__name__ if isinstance(refused, type) else type(refused).__name__
    assert (outcome.failures, dict(outcome.applied.assignments)) == ((f"{name}: ENOMEM",), assigned)
    assert kernel.throttled == {subflow: plan.classes[minor] for subflow, minor in assigned.items()}
    assert kernel.state.assignments == ({4: AssignmentState(assigned)} if assigned else {})


def test_reconcile_does_not_pace_a_subflow_without_assignment() -> None:
    kernel = ModelKernel(KernelState(pacing=PacingState({})), MakeAssignments)
    outcome = Reconciler(kernel).full(PACED)
    assert (dict(outcome.applied.assignments), kernel.state.pacing.paces) == ({}, {})


@pytest.mark.parametrize("ignored", [AddClass, MakeAssignments])
def test_operation_without_effect_is_reported_in_a_short_line(ignored: type[Operation]) -> None:
    class Deaf(ModelKernel):
        def _apply(self, operation: Operation) -> None:
            if not isinstance(operation, ignored):
                super()._apply(operation)

    many = {ends(f"10.1.{number // 250}.{number % 250}"): 2 for number in range(1000)}
    outcome = Reconciler(Deaf()).full(kernel_plan({2: SLOW}, many))
    assert f"{ignored.__name__}: acknowledged by the kernel, but not applied" in outcome.failures
    assert max(map(len, outcome.failures)) < 100
    assert dict(outcome.applied.assignments) == {}


def test_obstacle_is_reported_whether_or_not_a_subflow_is_throttled() -> None:
    kernel = ModelKernel(KernelState(QdiscState(obstacle="cake"), ONE_MARK))
    for plan in (ONE, UNTOUCHED):
        outcome = Reconciler(kernel).full(plan)
        assert (outcome.obstacle, outcome.failures, outcome.applied) == ("cake", (), UNTOUCHED)
        assert kernel.state.assignments == {}


def test_htb_replaces_at_once_where_a_restore_is_pending() -> None:
    restore_pending = KernelState(QdiscState(restore_pending=True))
    assert diff(restore_pending, UNTOUCHED) == (RestoreQdisc(),)
    assert diff(restore_pending, ONE) == (InstallHtb(0), AddClass(2, SLOW), MakeAssignments(4, {V4: 2}))


def test_pending_restore_does_not_displace_a_foreign_qdisc() -> None:
    # Between two readings another program deletes its own root qdisc, to add it again.
    contested = KernelState(QdiscState(obstacle="htb 9:", restore_pending=True))
    outcome = Reconciler(ModelKernel(contested)).full(ONE)
    assert (outcome.done, outcome.applied) == ((), UNTOUCHED)
    assert Reconciler(ModelKernel(contested)).full(UNTOUCHED).done == (RestoreQdisc(),)


@pytest.mark.parametrize(
    ("reads_refused", "errors", "applied", "throttled"),
    [(2, (), ONE, {V4: SLOW}), (100, ("unreadable: ENOBUFS",), UNTOUCHED, {})],
)
def test_reconcile_repeats_a_read_that_failed_or_frees_all_subflows(
    reads_refused: int, errors: tuple[str, ...], applied: KernelPlan, throttled: dict[FourTuple, Rate]
) -> None:
    kernel = ModelKernel(ONE_IN_KERNEL, reads_refused=reads_refused)
    outcome = Reconciler(kernel).full(ONE)
    assert (outcome.done, outcome.errors, outcome.failures) == ((), errors, errors)
    assert (outcome.applied, kernel.throttled) == (applied, throttled)


NOTHING = kernel_plan({})
SECOND = kernel_plan({3: FAST}, {V4B: 3})
SECOND_PACED = kernel_plan({3: FAST}, {V4B: 3}, {V4B: 100})


def ready(kernel: ModelKernel, plan: KernelPlan = ONE) -> Reconciler:
    """A reconciler that has read the kernel, in which `plan` is applied."""
    reconciler = Reconciler(kernel)
    assert reconciler.full(plan).failures == ()
    kernel.reads_refused = 100
    return reconciler


def test_incremental_changes_what_differs_and_reads_nothing() -> None:
    kernel = ModelKernel(ONE_IN_KERNEL)
    outcome = ready(kernel).incremental(NOTHING, SECOND)
    assert outcome.done == (AddClass(3, FAST), ChangeAssignments(4, {V4B: 3}, {}))
    assert (outcome.applied, outcome.failures, outcome.certain) == (SECOND, (), True)
    assert kernel.throttled == {V4: SLOW, V4B: FAST}


@pytest.mark.parametrize(
    ("refused", "objects"),
    [(AddClass, {KernelObject(ObjectKind.CLASS, 3)}), (ChangeAssignments, {KernelObject(ObjectKind.ASSIGNMENT, V4B)})],
)
def test_incremental_frees_wholly_what_is_refused_and_only_that(
    refused: type[Operation], objects: set[KernelObject]
) -> None:
    kernel = ModelKernel(replace(ONE_IN_KERNEL, pacing=PacingState({})))
    reconciler = ready(kernel)
    kernel.refuse = (refused,)
    outcome = reconciler.incremental(NOTHING, SECOND_PACED)
    assert (set(outcome.refused) == objects, outcome.errors, outcome.certain) == (True, (), True)
    assert (dict(outcome.applied.assignments), dict(outcome.applied.paces)) == ({}, {})
    assert (kernel.state.assignments, kernel.state.pacing) == (ONE_MARK, PacingState({}))
    assert kernel.state.qdisc.htb is not None
    assert dict(kernel.state.qdisc.htb.classes) == {2: SLOW}
    assert not kernel.dangling


def test_incremental_keeps_the_cap_of_a_subflow_that_cannot_be_paced() -> None:
    kernel = ModelKernel(replace(ONE_IN_KERNEL, pacing=PacingState({})))
    reconciler = ready(kernel)
    kernel.refuse = (ChangePaces,)
    outcome = reconciler.incremental(NOTHING, SECOND_PACED)
    assert set(outcome.refused) == {KernelObject(ObjectKind.PACE, V4B)}
    assert (outcome.applied, kernel.throttled) == (SECOND, {V4: SLOW, V4B: FAST})


def test_incremental_frees_a_subflow_whose_rate_cannot_be_changed() -> None:
    kernel = ModelKernel(ONE_IN_KERNEL, ChangeClass)
    outcome = ready(kernel).incremental(ONE, kernel_plan({2: FAST}, {V4: 2}))
    assert set(outcome.refused) == {KernelObject(ObjectKind.CLASS, 2)}
    assert (outcome.certain, kernel.throttled) == (True, {})


def test_incremental_is_uncertain_if_a_subflow_cannot_be_freed() -> None:
    kernel = ModelKernel(ONE_IN_KERNEL, ChangeAssignments, DeleteClass)
    outcome = ready(kernel).incremental(ONE, NOTHING)
    assert (outcome.certain, kernel.throttled) == (False, {V4: SLOW})


def test_incremental_refused_to_one_of_a_batch_serves_the_others() -> None:
    kernel = ModelKernel(ONE_IN_KERNEL, AddClass(4, SLOW))
    plan = kernel_plan({3: FAST, 4: SLOW, 5: FAST}, {V4B: 3, V6: 4, ends("10.1.0.9"): 5})
    outcome = ready(kernel).incremental(NOTHING, plan)
    assert kernel.throttled == {V4: SLOW, V4B: FAST, ends("10.1.0.9"): FAST}
    assert set(outcome.refused) == {KernelObject(ObjectKind.CLASS, 4)}


PACED_IN_KERNEL: Final = replace(ONE_IN_KERNEL, pacing=PacingState({V4: 100}))


@pytest.mark.parametrize(
    ("after", "intact"),
    [
        (PACED_IN_KERNEL, True),
        (replace(PACED_IN_KERNEL, assignments={}), False),
        (replace(PACED_IN_KERNEL, assignments={4: AssignmentState({})}), False),
        (replace(PACED_IN_KERNEL, assignments={4: AssignmentState({V4: 2, V4B: 2})}), False),
        (replace(PACED_IN_KERNEL, assignments={4: AssignmentState({V4: 2}, altered=True)}), False),
        (replace(PACED_IN_KERNEL, assignments={**PACED_IN_KERNEL.assignments, 6: AssignmentState({})}), False),
        (replace(PACED_IN_KERNEL, pacing=PacingState({})), False),
        (replace(PACED_IN_KERNEL, pacing=PacingState(None, "no listener")), False),
    ],
)
def test_quick_check_notices_what_is_missing_or_too_much(after: KernelState, intact: bool) -> None:
    kernel = ModelKernel(PACED_IN_KERNEL)
    reconciler, plan = Reconciler(kernel), kernel_plan({2: SLOW}, {V4: 2}, {V4: 100})
    reconciler.full(plan)
    kernel.state = after
    assert reconciler.quick_check(plan) == intact


def test_quick_check_expects_what_incremental_has_added() -> None:
    kernel = ModelKernel(ONE_IN_KERNEL)
    reconciler = Reconciler(kernel)
    reconciler.full(ONE)
    reconciler.incremental(NOTHING, kernel_plan({3: FAST}, {V6: 3}))
    assert reconciler.quick_check(kernel_plan({2: SLOW, 3: FAST}, {V4: 2, V6: 3}))
    assert not reconciler.quick_check(ONE)


def test_quick_check_expects_nothing_if_nothing_is_applied() -> None:
    kernel = ModelKernel()
    reconciler = Reconciler(kernel)
    reconciler.full(UNTOUCHED)
    assert reconciler.quick_check(UNTOUCHED)
    kernel.state = KernelState(assignments={4: AssignmentState({})})
    assert not reconciler.quick_check(UNTOUCHED)


def test_quick_check_fails_if_the_kernel_is_unreadable() -> None:
    kernel = ModelKernel(ONE_IN_KERNEL)
    reconciler = Reconciler(kernel)
    reconciler.full(ONE)
    kernel.reads_refused = 1
    assert not reconciler.quick_check(ONE)


def test_htb_missing_on_an_interface_is_installed_and_its_classes_added() -> None:
    incomplete = KernelState(QdiscState(HtbState(0, True, {2: None}, complete=False)), ONE_MARK)
    operations = (InstallHtb(0), ChangeClass(2, SLOW, replace_leaf=True))
    assert diff(incomplete, ONE) == operations
    kernel = ModelKernel(incomplete)
    outcome = Reconciler(kernel).full(ONE)
    assert (outcome.done, outcome.applied, diff(kernel.state, ONE)) == (operations, ONE, ())


class RefusingInterface(ModelKernel):
    """A kernel in which one of several interfaces refuses HTB: what is read after that says so."""

    def apply(self, operation: OtherOperation) -> None:
        super().apply(operation)
        if isinstance(operation, InstallHtb):
            self.state = replace(self.state, qdisc=replace(self.state.qdisc, left_out=("eth1: refused",)))


def test_interface_that_refuses_htb_is_reported_at_once() -> None:
    assert Reconciler(RefusingInterface()).full(ONE).left_out == ("eth1: refused",)


def test_without_a_qdisc_caps_are_applied_and_limits_are_not() -> None:
    unheld = KernelState(QdiscState(left_out=("eth0: root qdisc htb 9:",), without_qdisc=True), pacing=PacingState({}))
    plan = kernel_plan({2: SLOW, 3: SLOW}, {V4: 2, V6: 3}, {V4: 1000})
    capped = kernel_plan({2: SLOW}, {V4: 2}, {V4: 1000})
    reconciler = Reconciler(ModelKernel(unheld))
    outcome = reconciler.full(plan)
    assert (outcome.applied.persistent(), outcome.without_qdisc, outcome.failures) == (capped, True, ())
    assert reconciler.incremental(capped, plan).applied.persistent() == capped


def test_interface_left_out_is_reported_and_the_others_are_throttled() -> None:
    left_out = ("eth1: root qdisc htb 9: is in the way",)
    kernel = ModelKernel(KernelState(QdiscState(left_out=left_out)))
    outcome = Reconciler(kernel).full(ONE)
    assert (outcome.applied, outcome.left_out, outcome.failures) == (ONE, left_out, ())
