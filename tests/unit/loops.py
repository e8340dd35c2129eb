"""A control loop on models, for tests of what others make of its snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from examples import ETHERNET, WIFI, connection, subflow
from model_kernel import ModelKernel
from model_steering import ModelSteering
from model_uplinks import ModelUplinks
from worlds import ManualClock, ManualSource, configuration

from mptcp_throttle.model import AccessNetwork, Connection
from mptcp_throttled.accounting.control_group import Comparison
from mptcp_throttled.control.loop import Loop
from mptcp_throttled.control.operator_state import OperatorStore
from mptcp_throttled.control.running_config import RunningConfig
from mptcp_throttled.control.source import TableUpdate
from mptcp_throttled.vocabulary.control_group import NO_CONTROL_GROUP, ControlGroup
from mptcp_throttled.vocabulary.fleet import SharedRates
from mptcp_throttled.vocabulary.kernel_state import KernelState, PacingState
from mptcp_throttled.vocabulary.operator import Pause
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.traffic import ClosedSubflow


@dataclass
class LoopOnModels:
    """A loop for connections over these networks, with everything around it; its operator state is in `directory`."""

    directory: Path
    configured: tuple[AccessNetwork, ...] = (WIFI, ETHERNET)
    kernel: ModelKernel = field(default_factory=lambda: ModelKernel(KernelState(pacing=PacingState({}))))
    uplinks: ModelUplinks = field(default_factory=ModelUplinks)
    clock: ManualClock = field(default_factory=ManualClock)
    source: ManualSource = field(default_factory=ManualSource)
    closed: list[ClosedSubflow] = field(default_factory=list)
    steering: ModelSteering = field(default_factory=ModelSteering)
    control_group: ControlGroup = NO_CONTROL_GROUP
    shared: SharedRates | None = None

    def __post_init__(self) -> None:
        self.running = RunningConfig(configuration(self.configured), self.clock.time())
        self.operator = OperatorStore(self.directory / "overrides.json", self.configured, self.clock)
        self.comparison = Comparison(self.control_group.share)
        self.loop = Loop(
            self.running,
            self.operator,
            self.source,
            self.kernel,
            self.uplinks,
            self.kernel.features,
            self.clock,
            self.closed.extend,
            self.steering,
            self.comparison.note,
            self.control_group,
            shared=lambda: self.shared,
        )

    def show(self, *connections: Connection) -> Snapshot:
        """The snapshot after one step with these connections, and no others."""
        table = {connection.token: connection for connection in connections}
        self.source.update = TableUpdate("epoch", 1, table, whole=True, problem=None)
        self.loop.step()
        return self.loop.snapshot


def snapshot_of(directory: Path, *connections: Connection, paused: bool = False) -> Snapshot:
    """The snapshot of a new loop after one step with these connections."""
    running = LoopOnModels(directory)
    if paused:
        running.operator.pause(Pause(None))
    return running.show(*connections)


def snapshot_of_two_networks(directory: Path) -> Snapshot:
    """Of connections over Ethernet and Wi-Fi, Wi-Fi alone, and no network."""
    return snapshot_of(
        directory,
        connection(1, subflow("10.1.0.1"), subflow("10.2.0.1")),
        connection(2, subflow("10.2.0.1", 41000)),
        connection(3, subflow("192.0.2.1")),
    )
