"""What surrounds the control loop in unit tests: a clock that a test moves, and a table that a test sets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from examples import ETHERNET, WIFI

from mptcp_throttle.config.fleet_section import FleetSection
from mptcp_throttle.config.schema import Config, DaemonSection, MetricsSection, SnifferSection, WebSection
from mptcp_throttle.model import AccessNetwork, LogLevel
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import Proxies
from mptcp_throttled.control.source import TableUpdate
from mptcp_throttled.vocabulary.clock import Clock


@dataclass
class ManualClock(Clock):
    """A clock that a test moves. Wall clock and monotonic clock differ, as they do; a test may set the wall clock."""

    now: float = 1000.0
    epoch: float = 1.7e9
    used: float = 0.0

    def time(self) -> float:
        return self.now + self.epoch

    def monotonic(self) -> float:
        return self.now

    def processor_time(self) -> float:
        self.used += 0.01  # so much for every full reconcile: the next one comes after seconds, a quick check sooner
        return self.used


@dataclass
class ManualSource:
    """A table source that has what a test gives it."""

    update: TableUpdate | None = None

    def take(self) -> TableUpdate | None:
        update, self.update = self.update, None
        return update


def configuration(networks: tuple[AccessNetwork, ...] = (WIFI, ETHERNET), **daemon: object) -> Config:
    return Config(
        Proxies.only(Ports.of([8080]), ("eth0",)),
        SnifferSection(),
        DaemonSection.model_validate({"linger": "5s", **daemon}),
        MetricsSection(),
        WebSection(),
        FleetSection(),
        LogLevel.INFO,
        None,
        Path("/run/x"),
        Path("/var/lib/x"),
        None,
        networks,
    )
