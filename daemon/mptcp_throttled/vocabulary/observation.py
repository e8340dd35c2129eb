"""An observation: the state of the proxy's sockets, and the counters of classes and uplinks, at one time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from immutables import Map

from mptcp_throttle.model import FourTuple
from mptcp_throttled.vocabulary.traffic import SocketTotals


@dataclass(frozen=True, slots=True)
class SocketState:
    """A socket of the proxy that can send.

    `minor` is that of its class (0: none), `pace` is in bytes/s (None: not paced), `rtt` is its smoothed RTT in seconds
    (None before the first sample), `cookie` is SO_COOKIE. `unsent` are the queued bytes that were never sent.
    """

    minor: int
    pace: int | None
    totals: SocketTotals
    rtt: float | None = None
    cookie: int = 0
    is_mptcp: bool = True
    unsent: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """What was observed `at` a time (monotonic seconds).

    `classes` are the bytes that each class has counted, by minor, headers included. `uplinks` are the bytes of payload,
    by throttled uplink, that its program has seen acknowledged.
    """

    at: float
    sockets: Mapping[FourTuple, SocketState]
    classes: Mapping[int, int]
    uplinks: Mapping[FourTuple, int] = field(default_factory=Map)
