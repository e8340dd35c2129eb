"""What an operation does to a kernel state, if the kernel does not refuse it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from immutables import Map

from mptcp_throttle.units import Rate
from mptcp_throttled.reconcile import operations as op
from mptcp_throttled.reconcile.kernel_state import ChainState, HtbState, KernelState

K = TypeVar("K")
V = TypeVar("V")


def after(state: KernelState, operation: op.Operation) -> KernelState:
    """The state after an operation that succeeded in `state`."""
    qdisc = state.qdisc
    match operation:
        case op.InstallHtb(default_minor):
            return replace(state, qdisc=replace(qdisc, htb=HtbState(default_minor, True, {}), restore_pending=False))
        case op.RestoreQdisc(None):
            return replace(state, qdisc=replace(qdisc, htb=None, restore_pending=False))
        case op.RestoreQdisc(interface):
            pending = tuple(name for name in qdisc.pending_elsewhere if name != interface)
            return replace(state, qdisc=replace(qdisc, pending_elsewhere=pending))
        case op.AddClass(minor, rate) | op.ChangeClass(minor, rate):
            return _with_classes(state, _classes(state).set(minor, rate))
        case op.DeleteClass(minor):
            return _with_classes(state, _classes(state).delete(minor))
        case op.MakeChain(ip_version, marks):
            return replace(state, chains={**state.chains, ip_version: ChainState(marks)})
        case op.ChangeMarks(ip_version, add, remove):
            marks = _changed(state.chains[ip_version].marks, add, remove)
            return replace(state, chains={**state.chains, ip_version: ChainState(marks)})
        case op.ChangePaces(add, remove):
            return replace(state, pacing=replace(state.pacing, paces=_changed(state.pacing.paces or {}, add, remove)))
        case op.RemoveChain(ip_version):
            return replace(state, chains={v: chain for v, chain in state.chains.items() if v != ip_version})


def _classes(state: KernelState) -> Map[int, Rate | None]:
    return Map() if state.qdisc.htb is None else Map(state.qdisc.htb.classes)


def _with_classes(state: KernelState, classes: Map[int, Rate | None]) -> KernelState:
    if state.qdisc.htb is None:
        raise ValueError("no class without HTB")
    return replace(state, qdisc=replace(state.qdisc, htb=replace(state.qdisc.htb, classes=classes)))


def _changed(whole: Mapping[K, V], add: Mapping[K, V], remove: Mapping[K, V]) -> dict[K, V]:
    return {key: value for key, value in whole.items() if key not in remove} | dict(add)
