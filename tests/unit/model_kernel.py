"""What each operation does to a kernel, in memory: the kernel that tests of pure code need."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mptcp_throttled.reconcile.kernel_state import ChainState, HtbState, KernelState, QdiscState
from mptcp_throttled.reconcile.operations import (
    AddClass,
    ChangeClass,
    ChangeMarks,
    ChangePaces,
    DeleteClass,
    InstallHtb,
    MakeChain,
    Operation,
    RemoveChain,
    RestoreQdisc,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mptcp_throttle.model import FourTuple
    from mptcp_throttle.units import Rate


def apply(state: KernelState, operation: Operation) -> KernelState:
    """The state after the operation; fails where the real kernel would, and if a mark is left without its class."""
    htb, restore_pending, pending_elsewhere = (
        state.qdisc.htb,
        state.qdisc.restore_pending,
        state.qdisc.pending_elsewhere,
    )
    chains = dict(state.chains)
    paces = state.pacing.paces
    match operation:
        case InstallHtb(default_minor):
            assert htb is None
            assert state.qdisc.obstacle is None
            htb, restore_pending = HtbState(default_minor, True, {}), False
        case RestoreQdisc(None):
            assert htb is not None or restore_pending
            htb, restore_pending = None, False
        case RestoreQdisc(interface):
            assert interface in pending_elsewhere
            pending_elsewhere = tuple(name for name in pending_elsewhere if name != interface)
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
        case MakeChain(ip_version, made):
            chains[ip_version] = ChainState(dict(made))
        case ChangeMarks(ip_version, add, remove):
            marks = dict(chains[ip_version].marks)
            for gone in remove:
                del marks[gone]
            chains[ip_version] = ChainState({**marks, **add})
        case ChangePaces(add, remove):
            assert paces is not None
            paces = {ends: pace for ends, pace in paces.items() if ends not in remove} | dict(add)
        case RemoveChain(ip_version):
            del chains[ip_version]
    qdisc = QdiscState(htb, state.qdisc.obstacle, restore_pending, pending_elsewhere)
    return KernelState(qdisc, chains, replace(state.pacing, paces=paces))


def held(state: KernelState) -> dict[FourTuple, Rate]:
    """The rate of every subflow whose mark leads to a class."""
    return {ends: rate for ends, minor in _marks(state) if (rate := _classes(state).get(minor)) is not None}


def dangling(state: KernelState) -> bool:
    """Whether any mark names a class that is not there."""
    return any(minor not in _classes(state) for _, minor in _marks(state))


def _classes(state: KernelState) -> Mapping[int, Rate | None]:
    return {} if state.qdisc.htb is None else state.qdisc.htb.classes


def _marks(state: KernelState) -> Iterator[tuple[FourTuple, int]]:
    return (mark for chain in state.chains.values() for mark in chain.marks.items())
