"""What policy decides for a subflow."""

from __future__ import annotations

from dataclasses import dataclass

from mptcp_throttle.model import RateKind, Subflow, Token
from mptcp_throttle.units import Rate


@dataclass(frozen=True, slots=True)
class Share:
    """The subflows that share one rate: those of a network (`who` empty), of a client (its address or prefix), or a
    single one (its four-tuple)."""

    network: str
    kind: RateKind
    who: str


@dataclass(frozen=True, slots=True)
class Throttle:
    """The rate of a subflow, which it has together with all others of its share."""

    share: Share
    rate: Rate


@dataclass(frozen=True, slots=True)
class Decision:
    """What policy decides for one subflow. Without a `throttle` it is free; without an `uplink`, what its client sends
    is not throttled.

    `reason` is why, `uplink_reason` the same for what its client sends.
    """

    token: Token
    subflow: Subflow
    network: str | None
    throttle: Throttle | None
    reason: str
    uplink: Throttle | None = None
    uplink_reason: str = ""


Previous = dict["Token", tuple[Decision, ...]]
"""The decisions for connections before a change; an empty tuple for a connection that is new."""
