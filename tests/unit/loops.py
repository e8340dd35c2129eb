"""A control loop on models, for tests of what others make of its snapshot."""

from __future__ import annotations

from pathlib import Path

from examples import ETHERNET, WIFI
from model_kernel import ModelKernel
from model_uplinks import ModelUplinks
from worlds import ManualClock, ManualSource, configuration

from mptcp_throttle.model import Connection
from mptcp_throttled.loop import Loop
from mptcp_throttled.operator_state import OperatorStore, Pause
from mptcp_throttled.reconcile.kernel_state import KernelState, PacingState
from mptcp_throttled.running_config import RunningConfig
from mptcp_throttled.source import TableUpdate
from mptcp_throttled.state import Snapshot


def snapshot_of(directory: Path, *connections: Connection, paused: bool = False) -> Snapshot:
    """The snapshot after one step of a loop for these connections over Wi-Fi, and Ethernet, which has a cap."""
    clock, source = ManualClock(), ManualSource()
    operator = OperatorStore(directory / "overrides.json", (WIFI, ETHERNET), clock)
    if paused:
        operator.pause(Pause(None))
    kernel = ModelKernel(KernelState(pacing=PacingState({})))
    running = RunningConfig(configuration(), clock.time())
    loop = Loop(running, operator, source, kernel, ModelUplinks(), clock, lambda _: None)
    source.update = TableUpdate("epoch", 1, {one.token: one for one in connections}, whole=True, problem=None)
    loop.step()
    return loop.snapshot
