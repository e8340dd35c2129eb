"""What the kernel counted for subflows that have closed: totals per access network and per client since our start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from immutables import Map

from mptcp_throttle.model import AccessNetwork, Address, FourTuple, Token
from mptcp_throttled.policy.decide import Locator

MAX_CLIENTS: Final = 65536
"""Further clients are counted for their network only."""


@dataclass(frozen=True, slots=True)
class ClosedSubflow:
    """A subflow at its end. Bytes are TCP payload: acknowledged by the client, and received from it.

    Both count a FIN as one byte (net/ipv4/tcp_input.c, tcp_snd_una_update, tcp_rcv_nxt_update); `bytes_acknowledged`
    also counts the SYN of a subflow that the proxy's kernel has opened. The RTT is in microseconds.
    """

    token: Token
    ends: FourTuple
    smoothed_rtt: int
    bytes_acknowledged: int
    bytes_received: int
    segments_out: int
    segments_in: int
    retransmits: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over closed subflows, as in `ClosedSubflow`."""

    subflows: int = 0
    bytes_acknowledged: int = 0
    bytes_received: int = 0
    segments_out: int = 0
    segments_in: int = 0
    retransmits: int = 0

    def plus(self, closed: ClosedSubflow) -> Totals:
        """With one more subflow."""
        return Totals(
            self.subflows + 1,
            self.bytes_acknowledged + closed.bytes_acknowledged,
            self.bytes_received + closed.bytes_received,
            self.segments_out + closed.segments_out,
            self.segments_in + closed.segments_in,
            self.retransmits + closed.retransmits,
        )


@dataclass(frozen=True, slots=True)
class UplinkCounters:
    """What the program for uplinks has counted since it was loaded.

    Options appended, segments without room for one, ACKs repeated, and those that could not be sent; how often a
    subflow has begun to be policed, and the segments dropped for that.
    """

    appended: int = 0
    without_room: int = 0
    repeated: int = 0
    not_repeated: int = 0
    policed: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class ProgramCounters:
    """What the kernel program has counted since it was attached.

    `totals_lost` subflows closed while the ring buffer was full. `sockets_refused`: how often the kernel refused to set
    an option of a socket, or to store its state.
    """

    totals_lost: int = 0
    sockets_refused: int = 0


@dataclass(frozen=True, slots=True)
class Accounts:
    """The totals of each access network and client."""

    networks: Map[str, Totals] = field(default_factory=Map)
    clients: Map[Address, Totals] = field(default_factory=Map)

    def plus(self, closed: Iterable[ClosedSubflow], networks: Sequence[AccessNetwork]) -> Accounts:
        """With more closed subflows, but those of addresses in no access network."""
        closed = list(closed)
        if not closed:
            return self
        locate = Locator(networks)
        of_network, of_client = self.networks.mutate(), self.clients.mutate()
        for one in closed:
            address = one.ends.client.address
            network = locate(address)
            if network is None:
                continue
            of_network[network.name] = of_network.get(network.name, Totals()).plus(one)
            if address in of_client or len(of_client) < MAX_CLIENTS:
                of_client[address] = of_client.get(address, Totals()).plus(one)
        return Accounts(of_network.finish(), of_client.finish())
