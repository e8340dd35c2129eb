"""How fast each quantity that `benchmarks/soak` samples may grow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mptcp_lab.soak.slopes import Sample, Slope, Verdict, judge, slope_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONNECTIONS_PER_SECOND: Final = 8.0
"""What all `customers` begin together."""

_MEMORY: Final = 1024.0
"""KiB per hour: in a month of it, a service still has less than its `MemoryMax=` (systemd/*.service)."""

_OBJECTS: Final = 1.0
"""Per hour. Of what is counted, as much must be there after each round as after the first."""

_ENTRIES: Final = 10.0
"""Per hour. Clients, networks and budgets have some; the smallest map has room for 65 536."""

_LINES: Final = 4.0
"""Log lines per connection: it is capped and freed, its subflows are joined and closed."""

_HISTORY: Final = 2048.0
"""KiB per hour: with 20 rows per minute, of 300 bytes and in two indexes, one hour of the first day has 0.7 MiB."""

_STATE: Final = 64.0
_SLAB: Final = 16384.0
"""KiB per hour: all that runs on the machine is in it."""


@dataclass(frozen=True, slots=True)
class Bound:
    """`per_hour`, in units of the quantity. That of a process is `by_life`: it begins again when the process does."""

    per_hour: float
    by_life: str | None = None


BOUNDS: Final[Mapping[str, Bound]] = {
    **{
        f"{service} {quantity}": Bound(bound, service)
        for service in ("sniffer", "daemon")
        for quantity, bound in (
            ("resident", _MEMORY),
            ("private", _MEMORY),
            ("descriptors", _OBJECTS),
            ("threads", _OBJECTS),
        )
    },
    **{
        name: Bound(_OBJECTS)
        for name in (
            *("qdiscs", "classes", "filters", "iptables rules", "nftables lines", "routes", "sockets"),
            *("steering slots", "socket storage", "run files"),
        )
    },
    # A daemon with another classifier has others.
    **{name: Bound(_OBJECTS, "daemon") for name in ("BPF programs", "BPF links", "BPF maps")},
    "map entries": Bound(_ENTRIES, "daemon"),
    "log lines": Bound(_LINES * CONNECTIONS_PER_SECOND * 3600),
    "history": Bound(_HISTORY),
    "state files": Bound(_STATE),
    "kernel slab": Bound(_SLAB),
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All values at one moment, `hours` after the start; `lives` has a number for each service's present process."""

    hours: float
    values: Mapping[str, float]
    lives: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of one quantity: its values, its slope, and whether that is within the bound."""

    name: str
    first: float
    last: float
    most: float
    slope: Slope | None
    bound: float
    verdict: Verdict


def judge_all(snapshots: Sequence[Snapshot]) -> list[Judgement]:
    """A judgement of each quantity. There is at least one snapshot, and they are in the order of their times."""
    return [_judged(name, bound, snapshots) for name, bound in BOUNDS.items()]


def _judged(name: str, bound: Bound, snapshots: Sequence[Snapshot]) -> Judgement:
    samples = [
        Sample(each.hours, each.values[name], 0 if bound.by_life is None else each.lives[bound.by_life])
        for each in snapshots
    ]
    values, slope = [sample.value for sample in samples], slope_of(samples)
    return Judgement(name, values[0], values[-1], max(values), slope, bound.per_hour, judge(slope, bound.per_hour))
