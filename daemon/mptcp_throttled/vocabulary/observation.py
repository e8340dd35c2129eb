"""What the proxy's sockets have and carry, and what classes and the program for uplinks count, at one time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from immutables import Map

from mptcp_throttle.model import FourTuple
from mptcp_throttled.vocabulary.traffic import SocketTotals


@dataclass(frozen=True, slots=True)
class SocketState:
    """A socket of the proxy that can send: the minor of its class (0: none), its pace (bytes/s; None: not paced), what
    it has carried, its smoothed RTT in seconds (None before the first sample), and its cookie (SO_COOKIE).

    Not `is_mptcp`: TCP without MPTCP. `unsent` are the bytes that it has and has not sent once.
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
    """Sockets, and bytes that classes were given by minor, headers included, at `at` (monotonic seconds).

    `uplinks` are the bytes of payload that the program for uplinks has seen acknowledged, of those that are throttled.
    """

    at: float
    sockets: Mapping[FourTuple, SocketState]
    classes: Mapping[int, int]
    uplinks: Mapping[FourTuple, int] = field(default_factory=Map)
