"""What happened in one situation: measured, not yet judged. All times are in seconds since the download began."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mptcp_lab.topology import ETHERNET, WIFI

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mptcp_lab.download import DownloadResult
    from mptcp_lab.meter import Series
    from mptcp_lab.services import SubflowStatus

INTERFACES: Final = {link.network: link.interface for link in (ETHERNET, WIFI)}
"""The client's interface of each access network."""

MEGA: Final = 1e6


@dataclass(frozen=True, slots=True)
class Event:
    """Something that was done, or was seen to happen, in mid-transfer."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Observation:
    """The subflows that the daemon reported at a time."""

    at: float
    subflows: tuple[SubflowStatus, ...]

    @property
    def capped(self) -> tuple[SubflowStatus, ...]:
        """Those that were held to a rate."""
        return tuple(subflow for subflow in self.subflows if subflow.rate is not None)


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the transfer in which nothing changed, and the mean rate of each access network in it (Mb/s)."""

    label: str
    start: float
    end: float
    mbps: dict[str, float]


@dataclass(frozen=True, slots=True)
class Recording:
    """Measurements of one download. `began` is the monotonic clock at time 0.

    `kernel_restored` says whether the services left the proxy's kernel as they had found it, and ended well; None
    if they did not run.
    """

    began: float
    series: Series
    events: tuple[Event, ...]
    observations: tuple[Observation, ...]
    result: DownloadResult
    kernel_restored: bool | None

    @property
    def duration(self) -> float:
        """Seconds until the last byte."""
        return self.result.seconds

    def mbps(self, network: str, start: float, end: float) -> float:
        """Mean rate received over an access network, in Mb/s on the wire."""
        return self.series.rate(INTERFACES[network], self.began + start, self.began + end) / MEGA

    def bytes(self, network: str) -> int:
        """Bytes received over an access network in the whole transfer, on the wire."""
        return round(self.series.received(INTERFACES[network], self.began, self.began + self.duration))

    def window(self, label: str, start: float, end: float) -> Window:
        """The mean rates between two times."""
        return Window(label, start, end, {network: self.mbps(network, start, end) for network in INTERFACES})

    @property
    def join_to_cap(self) -> float | None:
        """Seconds from the JOIN to the cap's being in force, of the first subflow that was capped."""
        return next((s.join_to_cap for o in self.observations for s in o.capped), None)

    @property
    def capped_at(self) -> float | None:
        """When a cap was first seen in force."""
        return next((o.at for o in self.observations if o.capped), None)

    def uncapped_after(self, start: float) -> float | None:
        """When, after `start`, live subflows but no cap were first seen."""
        return next((o.at for o in self.observations if o.at > start and o.subflows and not o.capped), None)

    def event(self, text: str) -> float | None:
        """When the event of that text happened."""
        return next((event.at for event in self.events if event.text == text), None)

    @property
    def cap_steps(self) -> Iterable[tuple[float, float | None]]:
        """When the cap seen in force changed, and to what (Mb/s; None: no cap)."""
        before: float | None = None
        for observation in self.observations:
            rates = [subflow.rate for subflow in observation.capped if subflow.rate is not None]
            now = rates[0] / MEGA if rates else None
            if now != before:
                yield observation.at, now
                before = now
