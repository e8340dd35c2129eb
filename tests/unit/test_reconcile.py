"""Given this kernel and this plan, these operations; and whatever fails, nobody is half-capped."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import ends

from mptcp_throttle.units import Rate
from mptcp_throttled.kernel_state import ChainState, HtbState, KernelError, KernelState
from mptcp_throttled.operations import (
    AddClass,
    ChangeClass,
    ChangeMarks,
    DeleteClass,
    InstallHtb,
    Operation,
    RemoveChain,
    RestoreQdisc,
)
from mptcp_throttled.plan import UNTOUCHED, KernelPlan
from mptcp_throttled.reconcile import Reconciler, diff

SLOW, FAST = Rate.parse("1mbit"), Rate.parse("5mbit")
V4, V4B, V6 = ends("10.1.0.2"), ends("10.1.0.3"), ends("fd00:1::2")
ONE = KernelPlan(True, 0, {2: SLOW}, {V4: 2})
ONE_IN_KERNEL = KernelState(HtbState(0, True, {2: SLOW}), {4: ChainState({V4: 2})})


class ModelKernel:
    """A kernel in memory that checks what the real one would, and refuses what it is told to refuse."""

    def __init__(self, state: KernelState | None = None, refuse: type[Operation] | None = None) -> None:
        self.state = state or KernelState()
        self.refuse = refuse
        self.dangling = False

    def read(self) -> KernelState:
        return self.state

    def apply(self, operation: Operation) -> None:
        if self.refuse is not None and isinstance(operation, self.refuse):
            raise KernelError("refused", errno.EPERM)
        htb, chains = self.state.htb, dict(self.state.chains)
        match operation:
            case InstallHtb(default_minor):
                assert htb is None
                htb = HtbState(default_minor, True, {})
            case RestoreQdisc():
                assert htb is not None
                htb = None
            case AddClass(minor, rate):
                assert htb is not None
                assert minor not in htb.classes
                htb = replace(htb, classes={**htb.classes, minor: rate})
            case ChangeClass(minor, rate):
                assert htb is not None
                assert minor in htb.classes
                htb = replace(htb, classes={**htb.classes, minor: rate})
            case DeleteClass(minor):
                assert htb is not None
                htb = replace(htb, classes={m: rate for m, rate in htb.classes.items() if m != minor})
            case ChangeMarks(ip_version, add, remove):
                marks = dict(chains.get(ip_version, ChainState({})).marks)
                for gone in remove:
                    del marks[gone]
                chains[ip_version] = ChainState({**marks, **add})
            case RemoveChain(ip_version):
                del chains[ip_version]
        self.state = KernelState(htb, chains)
        classes = {} if htb is None else htb.classes
        if any(minor not in classes for chain in chains.values() for minor in chain.marks.values()):
            self.dangling = True


@pytest.mark.parametrize(
    ("actual", "plan", "operations"),
    [
        (KernelState(), UNTOUCHED, ()),
        (ONE_IN_KERNEL, ONE, ()),
        (KernelState(), ONE, (InstallHtb(0), AddClass(2, SLOW), ChangeMarks(4, {V4: 2}, {}))),
        (ONE_IN_KERNEL, UNTOUCHED, (RemoveChain(4), RestoreQdisc())),
        (ONE_IN_KERNEL, replace(ONE, classes={2: FAST}), (ChangeClass(2, FAST),)),
        (
            ONE_IN_KERNEL,
            KernelPlan(True, 0, {2: SLOW, 3: SLOW}, {V4: 2, V6: 3}),
            (AddClass(3, SLOW), ChangeMarks(6, {V6: 3}, {})),
        ),
        (
            ONE_IN_KERNEL,
            KernelPlan(True, 0, {3: SLOW}, {V4: 3}),
            (AddClass(3, SLOW), ChangeMarks(4, {V4: 3}, {V4: 2}), DeleteClass(2)),
        ),
        (
            replace(ONE_IN_KERNEL, htb=None),
            ONE,
            (InstallHtb(0), AddClass(2, SLOW)),
        ),
        (
            replace(ONE_IN_KERNEL, htb=HtbState(0, False, {2: SLOW})),
            ONE,
            (RestoreQdisc(), InstallHtb(0), AddClass(2, SLOW)),
        ),
        (replace(ONE_IN_KERNEL, htb=HtbState(0, True, {2: None})), ONE, (ChangeClass(2, SLOW),)),
        (
            replace(ONE_IN_KERNEL, chains={4: ChainState({V4: 2}, stray=True)}),
            ONE,
            (RemoveChain(4), ChangeMarks(4, {V4: 2}, {})),
        ),
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
    return KernelPlan(True, 0, classes, {e: draw(st.sampled_from(sorted(classes))) for e in sorted(marked, key=str)})


@given(plans(), plans())
def test_every_plan_is_reached_from_every_other_and_no_mark_ever_dangles(first: KernelPlan, second: KernelPlan) -> None:
    kernel = ModelKernel()
    for plan in (first, second, UNTOUCHED):
        outcome = Reconciler(kernel).converge(plan)
        assert outcome.errors == ()
        assert outcome.in_force == plan
        assert diff(kernel.state, plan) == ()
        assert not kernel.dangling
    assert kernel.state.htb is None


@pytest.mark.parametrize("refused", [InstallHtb, AddClass, ChangeMarks])
def test_what_the_kernel_refuses_leaves_its_subflows_uncapped_and_reported(refused: type[Operation]) -> None:
    kernel = ModelKernel(refuse=refused)
    outcome = Reconciler(kernel).converge(KernelPlan(True, 0, {2: SLOW}, {V4: 2, V6: 2}))
    assert outcome.errors
    assert outcome.errors[0] == "refused: EPERM"
    assert outcome.in_force.marks == {}
    assert not kernel.dangling
    kernel.refuse = None
    assert Reconciler(kernel).converge(ONE).in_force == ONE


def test_a_refused_class_does_not_keep_others_from_theirs() -> None:
    class OneRefused(ModelKernel):
        def apply(self, operation: Operation) -> None:
            if operation == AddClass(2, SLOW):
                raise KernelError("class 2", errno.ENOBUFS)
            super().apply(operation)

    kernel = OneRefused()
    outcome = Reconciler(kernel).converge(KernelPlan(True, 0, {2: SLOW, 3: FAST}, {V4: 2, V4B: 3}))
    assert outcome.errors == ("class 2: ENOBUFS",)
    assert outcome.in_force.marks == {V4B: 3}
    assert kernel.state.chains == {4: ChainState({V4B: 3})}


def test_an_operation_without_effect_is_noticed() -> None:
    class Deaf(ModelKernel):
        def apply(self, operation: Operation) -> None:
            if not isinstance(operation, AddClass):
                super().apply(operation)

    outcome = Reconciler(Deaf()).converge(ONE)
    assert any(error.startswith("not in force after it was applied: AddClass") for error in outcome.errors)


def test_a_kernel_that_cannot_be_read_means_nothing_is_in_force() -> None:
    class Gone(ModelKernel):
        def read(self) -> KernelState:
            raise KernelError("interface eth0 does not exist", errno.ENODEV)

    outcome = Reconciler(Gone()).converge(ONE)
    assert outcome.errors == ("interface eth0 does not exist: ENODEV",)
    assert outcome.in_force == UNTOUCHED
