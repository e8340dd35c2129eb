"""How far the packets of a connection are out of order."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from mptcp_lab.disorder.reassembly import Added, Reassembly
from mptcp_lab.percentiles import percentile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mptcp_lab.disorder.arrivals import Arrival

_PERCENT: Final = 95
_LONGEST_WAIT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Disorder:
    """The disorder of the `packets` with new data of a connection, once TCP has put each subflow in order.

    `percent`: those that came while an earlier byte of the connection was missing; `percent_in_subflows`: that had
    arrived while an earlier byte of their subflow was missing. `most_held`: the most bytes that waited for an earlier
    one of the connection at a time. The 95th percentiles, 0 if there are none: `extent`, how many packets came from the
    first one that overtook a late packet until that came (RFC 4737, section 4.2.1); `wait`, how many milliseconds a
    packet that came early waited for an earlier byte.
    """

    packets: int
    percent: float
    percent_in_subflows: float
    most_held: int
    extent: float
    wait: float


class _Subflow:
    """What TCP does with the packets of a subflow: it keeps those whose turn has not come."""

    def __init__(self) -> None:
        self._stream = Reassembly()
        self._kept: list[Arrival] = []  # sorted by offset

    @property
    def oldest(self) -> float:
        """When the packet came that has been kept for the longest time; infinity if there is none."""
        return min((kept.at for kept in self._kept), default=math.inf)

    def add(self, arrival: Arrival) -> tuple[Added, list[Arrival]]:
        """What the packet added, and the packets that go on to the connection now."""
        added = self._stream.add(arrival.offset, arrival.offset + arrival.size)
        insort(self._kept, arrival, key=lambda kept: kept.offset)
        due = bisect_left(self._kept, self._stream.expected, key=lambda kept: kept.offset)
        going, self._kept = self._kept[:due], self._kept[due:]
        return added, going


def summarise(arrivals: Iterable[Arrival]) -> Disorder:
    """The disorder of a connection; `arrivals` in the order in which they came.

    Raises ValueError if a packet is missing: if later packets of its subflow still wait for it five seconds later.
    """
    at = 0.0
    subflows = defaultdict[object, _Subflow](_Subflow)
    connection = _Connection()
    early_in_subflows = 0
    for arrival in arrivals:
        at = arrival.at
        added, going = subflows[arrival.subflow].add(arrival)
        early_in_subflows += added.new > 0 and not added.in_order
        for packet in going:
            connection.add(at, packet)
    if any(at - subflow.oldest > _LONGEST_WAIT_SECONDS for subflow in subflows.values()):
        raise ValueError("a packet of a subflow is missing, or where it belongs in the connection")
    return connection.disorder(early_in_subflows)


class _Connection:
    """What MPTCP does with the packets that subflows hand on."""

    def __init__(self) -> None:
        self._stream = Reassembly()
        self._packets = self._early = self._most_held = 0
        self._extents: list[float] = []
        self._waits: list[float] = []
        self._waiting: list[tuple[int, float]] = []  # a heap: offsets of early packets, and when they came
        # Offset, and number among all packets, of each that came further than all before it.
        self._furthest: list[int] = []
        self._numbers: list[int] = []

    def add(self, at: float, packet: Arrival) -> None:
        """A packet comes at that time."""
        offset = packet.connection_offset
        new, in_order = self._stream.add(offset, offset + packet.size)
        if not new:
            return
        self._packets += 1
        self._early += not in_order
        self._most_held = max(self._most_held, self._stream.held)
        if not in_order:
            heappush(self._waiting, (offset, at))
        while self._waiting and self._waiting[0][0] < self._stream.expected:
            _, came = heappop(self._waiting)
            self._waits.append((at - came) * 1000)
        first = bisect_right(self._furthest, offset)
        if first < len(self._furthest):
            self._extents.append(self._packets - self._numbers[first])
        else:
            self._furthest.append(offset)
            self._numbers.append(self._packets)

    def disorder(self, early_in_subflows: int) -> Disorder:
        """The disorder of all packets so far."""
        packets = max(self._packets, 1)
        return Disorder(
            self._packets,
            100 * self._early / packets,
            100 * early_in_subflows / packets,
            self._most_held,
            _most(self._extents),
            _most(self._waits),
        )


def _most(values: Sequence[float]) -> float:
    return percentile(values, _PERCENT) if values else 0.0
