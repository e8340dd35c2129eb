"""What policy decides for a subflow."""

from __future__ import annotations

from dataclasses import dataclass

from mptcp_throttle.model import Address, Direction, RateKind, Subflow, Token
from mptcp_throttle.units import Rate


@dataclass(frozen=True, slots=True)
class Share:
    """The subflows that share one rate: those of a network (`who` empty), of a client (its address or prefix), or a
    single one (its four-tuple).

    `client` is the first address of a client with terms of its own, whose share this is; None: it is another share.
    """

    network: str
    kind: RateKind
    who: str
    client: Address | None = None


@dataclass(frozen=True, slots=True)
class Throttle:
    """The rate that all subflows of a share have together."""

    share: Share
    rate: Rate


@dataclass(frozen=True, slots=True)
class Verdict:
    """What policy decides for one direction of a subflow: its share, None if it is free; and why."""

    share: Share | None
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What policy decides for one subflow. It has no rate: that of a share is in the terms.

    `client` is the address that stands for the client in its network; None: the subflow is in none.
    """

    token: Token
    subflow: Subflow
    network: str | None
    downlink: Verdict
    uplink: Verdict
    client: Address | None = None

    def of(self, direction: Direction) -> Verdict:
        """The verdict for a direction."""
        return self.downlink if direction is Direction.DOWNLINK else self.uplink


Previous = dict["Token", tuple[Decision, ...]]
"""The decisions for connections before a change; an empty tuple for a connection that is new."""
