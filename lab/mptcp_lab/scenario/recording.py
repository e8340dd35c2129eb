"""What happened in one run of a scenario: measured, not yet judged. All times are in seconds since the start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from mptcp_lab.curve import MEGA

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mptcp_lab.disorder.summary import Disorder
    from mptcp_lab.playback import Played
    from mptcp_lab.sampler import InterfaceSample, SubflowSample


class Event(NamedTuple):
    """Something that was done, from `at` until `done` (None: at once), or was seen to happen.

    Moments refer to it by its name.
    """

    at: float
    text: str
    name: str | None = None
    done: float | None = None


def moments(events: Iterable[Event]) -> dict[str, float]:
    """When each event had its effect, by its name."""
    return {e.name: e.at if e.done is None else e.done for e in events if e.name is not None}


class CapChange(NamedTuple):
    """A subflow was capped to `mbps`, or is no longer (None). `client` is its address and port at the client.

    `join_to_cap`: seconds from the JOIN until the cap was in the kernel; None if the daemon does not say.
    """

    at: float
    client: str
    network: str
    mbps: float | None
    join_to_cap: float | None


@dataclass(frozen=True, slots=True)
class FlowResult:
    """What the flow's program said: seconds it took, bytes that arrived; None where it did not finish.

    `played` are the segments of a video.
    """

    seconds: float | None
    size: int | None
    played: Sequence[Played] = ()

    @property
    def goodput(self) -> float | None:
        """The goodput in Mb/s."""
        return self.size * 8 / self.seconds / MEGA if self.seconds and self.size is not None else None


@dataclass(frozen=True, slots=True)
class Recording:
    """Measurements of one run, from the `start` of the first flow until `duration`.

    `counters` are the increases of what nstat(8) shows, per host; `idle` is the share of the processors' time in which
    they had nothing to do. `backups` are the networks in which the daemon has seen a backup subflow; `restored` says
    whether the services ended well and left the kernel as they had found it, None if that was not asked. `disorder` is
    that of the flows that were captured; `used` are the bytes that the budgets of each network have counted; `outages`
    are seconds by the names of their events; `setups` the seconds that the switches' controller took for the first
    packets of flows.
    """

    duration: float
    interfaces: Sequence[InterfaceSample]
    subflows: Sequence[SubflowSample]
    counters: Mapping[str, Mapping[str, int]]
    flows: Mapping[str, FlowResult]
    events: Sequence[Event]
    idle: float
    caps: Sequence[CapChange] = ()
    backups: frozenset[str] = frozenset()
    restored: bool | None = None
    used: Mapping[str, int] = field(default_factory=dict)
    start: float = 0.0
    disorder: Mapping[str, Disorder] = field(default_factory=dict)
    outages: Mapping[str, float] = field(default_factory=dict)
    setups: Sequence[float] = ()
