"""Makes a situation happen: a lab of its own, the programs in it, and a download under observation."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from mptcp_lab.demo.recording import INTERFACES, Event, Observation, Recording
from mptcp_lab.download import Download
from mptcp_lab.errors import LabError
from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.logs import kept
from mptcp_lab.meter import PathMeter
from mptcp_lab.origin import start_origin
from mptcp_lab.services import Services
from mptcp_lab.squid import start_squid
from mptcp_lab.topology import ClientSpec, Lab, Topology, build

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mptcp_lab.demo.display import Display
    from mptcp_lab.demo.situations import Situation

_POLL_SECONDS: Final = 0.05
_RATE_SECONDS: Final = 1.0
_STALL_SECONDS: Final = 20.0


class Stage:
    """A download in progress, for the script of a situation to act upon."""

    def __init__(
        self, lab: Lab, services: Services | None, download: Download, meter: PathMeter, display: Display
    ) -> None:
        self.lab = lab
        self.began = time.monotonic()
        self.events: list[Event] = []
        self.observations: list[Observation] = []
        self._services = services
        self._download = download
        self._meter = meter
        self._display = display
        self._progress_at = self.began
        self._progress = 0

    @property
    def services(self) -> Services:
        """The running services. Raises LabError in a situation without them."""
        if self._services is None:
            raise LabError("the services do not run in this situation")
        return self._services

    @property
    def capped(self) -> bool:
        """Whether a cap was in force when the daemon was last asked."""
        return bool(self.observations and self.observations[-1].capped)

    def received(self, share: float) -> bool:
        """Whether that share of the document has arrived."""
        return self._download.received >= share * self._download.document.size

    def note(self, text: str) -> None:
        """Record that something is happening now."""
        event = Event(self._now(), text)
        self.events.append(event)
        self._display.event(event)

    def wait(self, until: Callable[[], bool] | None = None) -> None:
        """Observe until the condition holds or the download has ended.

        Raises LabError if not a byte arrives for 20 s.
        """
        while self._download.running and not (until is not None and until()):
            self._observe()
            time.sleep(_POLL_SECONDS)

    def _observe(self) -> None:
        capped = self.capped
        if self._services is not None:
            subflows = self._services.subflows()
            self.observations.append(Observation(self._now(), subflows))
        if self.capped and not capped:
            self.note("cap in force")
        received, now = self._download.received, time.monotonic()
        if received > self._progress:
            self._progress, self._progress_at = received, now
        elif now - self._progress_at > _STALL_SECONDS:
            raise LabError(f"the download stalled: no byte for {_STALL_SECONDS:g} s after {received / 1e6:.1f} MB")
        series = self._meter.series()
        rates = {name: series.rate(port, now - _RATE_SECONDS, now) for name, port in INTERFACES.items()}
        self._display.progress(received, rates)

    def _now(self) -> float:
        return time.monotonic() - self.began


def perform(situation: Situation, size: int, display: Display, logs: Path) -> Recording:
    """Download `size` bytes in that situation. Raises LabError if anything but the expectations fails.

    The logs of all programs are left in the directory `logs`.
    """
    topology = Topology(clients=(ClientSpec(wifi=situation.wifi),))
    with build(topology) as lab, kept(lab.directory, logs):
        origin = start_origin(lab.origin)
        document = origin.add(size)
        start_squid(lab.proxy)
        before = kernel_state(lab.proxy) if situation.services else {}
        with ExitStack() as stack:
            services = stack.enter_context(Services(lab.proxy)) if situation.services else None
            meter = stack.enter_context(PathMeter(lab.client.namespace, list(INTERFACES.values())))
            download = Download(lab, lab.client, document, mptcp=situation.mptcp)
            stage = Stage(lab, services, download, meter, display)
            situation.script(stage)
            stage.wait()
            result = download.wait()
            display.progress(result.size, {})
            if not result.intact:
                raise download.error()
            series = meter.series()
        restored = None
        if services is not None:
            restored = kernel_state(lab.proxy) == before and services.exit_statuses == (0, 0)
        return Recording(stage.began, series, tuple(stage.events), tuple(stage.observations), result, restored)
