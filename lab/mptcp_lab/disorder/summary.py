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
    """Of the `packets` with new data of a connection.

    `percent`: those that came while an earlier byte of the connection was missing; `percent_in_subflows`: of their
    subflow. `most_held`: the most bytes that waited for an earlier one at a time. The 95th percentiles, 0 if there are
    none: `extent`, how many packets overtook a late one (RFC 4737, section 4.2.1); `wait`, how many milliseconds the
    connection waited for a missing byte.
    """

    packets: int
    percent: float
    percent_in_subflows: float
    most_held: int
    extent: float
    wait: float


def summarise(arrivals: Iterable[Arrival]) -> Disorder:
    """The disorder of a connection; `arrivals` in the order in which they came."""
    whole, subflows = Reassembly(), defaultdict[object, Reassembly](Reassembly)
    packets = early = early_in_subflows = most_held = 0
    extents: list[float] = []
    waits: list[float] = []
    before: list[int] = []  # connection offsets of the packets so far, sorted
    since: float | None = None
    for arrival in arrivals:
        _, in_order_in_subflow = subflows[arrival.subflow].add(arrival.offset, arrival.offset + arrival.size)
        new, in_order = whole.add(arrival.connection_offset, arrival.connection_offset + arrival.size)
        if not new:
            continue
        packets += 1
        early += not in_order
        early_in_subflows += not in_order_in_subflow
        most_held = max(most_held, whole.held)
        if whole.held and since is None:
            since = arrival.at
        elif not whole.held and since is not None:
            waits.append((arrival.at - since) * 1000)
            since = None
        overtaken_by = len(before) - bisect_left(before, arrival.connection_offset)
        if overtaken_by:
            extents.append(overtaken_by)
        insort(before, arrival.connection_offset)
    return Disorder(
        packets,
        100 * early / max(packets, 1),
        100 * early_in_subflows / max(packets, 1),
        most_held,
        _percentile(extents),
        _percentile(waits),
    )


def _percentile(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * _MOST)] if values else 0.0
