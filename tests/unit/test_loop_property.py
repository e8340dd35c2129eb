"""Whatever happens in whatever order: no subflow is wrongly throttled, and in the end the plan is applied."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from examples import ETHERNET, WIFI, connection, ends, subflow
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from loops import LoopOnModels
from model_kernel import ModelKernel
from policy_oracle import decide_all

from mptcp_throttle.model import Connection, RateKind, Token
from mptcp_throttle.units import Rate
from mptcp_throttled.control.source import TableUpdate
from mptcp_throttled.vocabulary.kernel_state import AssignmentState, KernelState, PacingState
from mptcp_throttled.vocabulary.operations import (
    AddClass,
    ChangeAssignments,
    ChangeClass,
    ChangePaces,
    DeleteClass,
    InstallHtb,
    MakeAssignments,
    RemoveAssignments,
    RestoreQdisc,
)

NETWORKS = (WIFI, ETHERNET.with_rates({RateKind.UPLINK_CAP: Rate.parse("250kbit")}))
NUMBERS = st.integers(1, 4)
REFUSALS = st.sets(
    st.sampled_from(
        [
            AddClass,
            ChangeClass,
            DeleteClass,
            MakeAssignments,
            ChangeAssignments,
            RemoveAssignments,
            ChangePaces,
            InstallHtb,
            RestoreQdisc,
        ]
    ),
    max_size=3,
)
UPLINK_REFUSALS = st.sets(
    st.sampled_from(["attach", "throttle", "forget", "detach_if_told", ends("10.1.0.1"), ends("10.1.0.2")])
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), NUMBERS, st.booleans()),
        st.tuples(st.just("lone"), NUMBERS, st.booleans()),
        st.tuples(st.just("end"), NUMBERS, st.booleans()),
        st.tuples(st.just("refuse"), REFUSALS, st.booleans()),
        st.tuples(st.just("refuse uplinks"), UPLINK_REFUSALS, st.booleans()),
        st.tuples(st.just("undo"), st.sampled_from(["qdisc", "classifier", "filter"]), st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from([0.01, 0.15, 1.1, 6.0]), st.booleans()),
    ),
    max_size=25,
)


def joined(number: int, *, v6: bool, alone: bool) -> Connection:
    addresses = [f"fd00:{net}::{number}" if v6 else f"10.{net}.0.{number}" for net in ((1,) if alone else (1, 2))]
    return connection(number, *map(subflow, addresses))


@given(STEPS, st.booleans())
def test_loop_throttles_no_subflow_wrongly_and_recovers(steps: list[tuple[str, object, bool]], paced: bool) -> None:
    pacing = PacingState({}) if paced else PacingState(None, "no cgroup2")
    table: dict[Token, Connection] = {}
    with tempfile.TemporaryDirectory() as directory:
        world = LoopOnModels(Path(directory), NETWORKS, ModelKernel(KernelState(pacing=pacing)))
        loop, kernel, uplinks = world.loop, world.kernel, world.uplinks
        for what, argument, flag in steps:
            match what, argument:
                case (("join" | "lone"), int(number)):
                    table[Token(number)] = joined(number, v6=flag, alone=what == "lone")
                case "end", int(number):
                    table.pop(Token(number), None)
                case "refuse", set(refused):
                    kernel.refuse = tuple(refused)
                case "refuse uplinks", set(refused):
                    uplinks.refuse = refused
                case "undo", "qdisc":
                    kernel.replace_qdisc(htb=None)
                    loop.note_kernel_change()
                case "undo", "filter":
                    uplinks.has_filter = False
                    loop.note_kernel_change()
                case "undo", _:
                    kernel.state = KernelState(
                        kernel.state.qdisc, {4: AssignmentState({}, altered=True)}, kernel.state.pacing
                    )
                case "wait", float(seconds):
                    world.clock.now += seconds
            world.source.update = TableUpdate("epoch", 1, dict(table), True, None)
            loop.step()
            decisions = decide_all(table.values(), NETWORKS)
            justified = {d.subflow.ends for d in decisions if d.downlink.share is not None}
            if RestoreQdisc not in kernel.refuse:
                # With everything refused that could free, only the qdisc itself can go.
                assert kernel.throttled.keys() <= justified
            assert set(loop.snapshot.throttled) <= justified
            justified_uplinks = {d.subflow.ends for d in decisions if d.uplink.share is not None}
            # What cannot be freed is reported, and tried again.
            assert uplinks.throttled.keys() <= justified_uplinks or loop.snapshot.errors
            assert set(loop.snapshot.uplinks) <= uplinks.throttled.keys()
        kernel.refuse = ()
        uplinks.refuse = set()
        loop.note_kernel_change()
        for _ in range(40):
            world.clock.now += 0.5
            loop.step()
        assert set(loop.snapshot.throttled) == kernel.throttled.keys() == (justified if steps else set())
        assert {*loop.snapshot.uplinks} == {*uplinks.throttled} == (justified_uplinks if steps else set())
        assert uplinks.has_filter == bool(uplinks.throttled)
        assert loop.snapshot.errors == ()
        plan = loop.snapshot.plan
        assert loop.snapshot.applied == (plan if paced else replace(plan, paces=Map()))
        assert loop.release() == ()
        assert kernel.state.qdisc.htb is None
        assert not kernel.state.assignments
        assert not kernel.state.pacing.paces
        assert not uplinks.throttled
        assert not uplinks.has_filter
