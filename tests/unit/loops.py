"""A control loop on models, for tests of what others make of its snapshot."""

from __future__ import annotations

from pathlib import Path

from examples import ETHERNET, WIFI
from model_kernel import ModelKernel
from model_uplinks import ModelUplinks
from worlds import ManualClock, ManualSource, configuration

from mptcp_throttle.model import Connection
from mptcp_throttled.control.loop import Loop
from mptcp_throttled.control.operator_state import OperatorStore
from mptcp_throttled.control.running_config import RunningConfig
from mptcp_throttled.control.source import TableUpdate
from mptcp_throttled.vocabulary.kernel_state import KernelState, PacingState
from mptcp_throttled.vocabulary.operator import Pause
from mptcp_throttled.vocabulary.snapshot import Snapshot


class LoopOnModels:
    """A loop for connections over Wi-Fi, and Ethernet, which has a cap; its operator state is in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.operator = OperatorStore(directory / "overrides.json", (WIFI, ETHERNET), self.clock)
        self._source = ManualSource()
        kernel = ModelKernel(KernelState(pacing=PacingState({})))
        running = RunningConfig(configuration(), self.clock.time())
        uplinks, features = ModelUplinks(), kernel.features
        self.loop = Loop(running, self.operator, self._source, kernel, uplinks, features, self.clock, lambda _: None)

    def show(self, *connections: Connection) -> Snapshot:
        """The snapshot after one step with these connections, and no others."""
        self._source.update = TableUpdate("epoch", 1, {one.token: one for one in connections}, whole=True, problem=None)
        self.loop.step()
        return self.loop.snapshot


def snapshot_of(directory: Path, *connections: Connection, paused: bool = False) -> Snapshot:
    """The snapshot of a new loop after one step with these connections."""
    running = LoopOnModels(directory)
    if paused:
        running.operator.pause(Pause(None))
    return running.show(*connections)
