"""How far the packets of a connection are out of order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mptcp_lab.disorder.reassembly import Reassembly

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mptcp_lab.disorder.arrivals import Arrival

_MOST: Final = 0.95


@dataclass(frozen=True, slots=True)
class Disorder:
    """Of the `packets` with new data of a connection, as MPTCP gets them: when TCP has put each subflow in order.

    `percent`: those that came while an earlier byte of the connection was missing; `percent_in_subflows`: that had
    arrived while an earlier byte of their subflow was missing. `most_held`: the most bytes that waited for an earlier
    one of the connection at a time. The 95th percentiles, 0 if there are none: `extent`, how many packets overtook a
    late one (RFC 4737, section 4.2.1); `wait`, how many milliseconds the connection waited for a missing byte.
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

    def add(self, arrival: Arrival) -> tuple[bool, list[Arrival]]:
        """Whether the packet came in order, and those that go on to the connection now."""
        in_order = self._stream.add(arrival.offset, arrival.offset + arrival.size).in_order
        insort(self._kept, arrival, key=lambda kept: kept.offset)
        due = bisect_left(self._kept, self._stream.expected, key=lambda kept: kept.offset)
        going, self._kept = self._kept[:due], self._kept[due:]
        return in_order, going


def summarise(arrivals: Iterable[Arrival]) -> Disorder:
    """The disorder of a connection; `arrivals` in the order in which they came."""
    subflows = defaultdict[object, _Subflow](_Subflow)
    connection = _Connection()
    early_in_subflows = 0
    for arrival in arrivals:
        in_order, going = subflows[arrival.subflow].add(arrival)
        early_in_subflows += not in_order
        for packet in going:
            connection.add(arrival.at, packet)
    return connection.disorder(early_in_subflows)


class _Connection:
    """What MPTCP does with the packets that subflows hand on."""

    def __init__(self) -> None:
        self._stream = Reassembly()
        self._packets = self._early = self._most_held = 0
        self._extents: list[float] = []
        self._waits: list[float] = []
        self._before: list[int] = []  # offsets of the packets so far, sorted
        self._since: float | None = None

    def add(self, at: float, packet: Arrival) -> None:
        """A packet comes at that time."""
        offset = packet.connection_offset
        new, in_order = self._stream.add(offset, offset + packet.size)
        if not new:
            return
        self._packets += 1
        self._early += not in_order
        self._most_held = max(self._most_held, self._stream.held)
        if self._stream.held and self._since is None:
            self._since = at
        elif not self._stream.held and self._since is not None:
            self._waits.append((at - self._since) * 1000)
            self._since = None
        overtaken_by = len(self._before) - bisect_left(self._before, offset)
        if overtaken_by:
            self._extents.append(overtaken_by)
        insort(self._before, offset)

    def disorder(self, early_in_subflows: int) -> Disorder:
        """All of it."""
        packets = max(self._packets, 1)
        return Disorder(
            self._packets,
            100 * self._early / packets,
            100 * early_in_subflows / packets,
            self._most_held,
            _percentile(self._extents),
            _percentile(self._waits),
        )


def _percentile(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * _MOST)] if values else 0.0
