"""Sets of TCP ports, as ranges: a proxy with a port per user has thousands."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Self, final

from mptcp_throttle.units import not_decimal

_END: Final = 65536
_LONGEST_LISTED_SINGLY: Final = 2


@final
@dataclass(frozen=True, slots=True)
class Ports(Collection[int]):
    """A set of ports. `ranges` become ascending and disjoint, and none is next to another."""

    ranges: tuple[range, ...] = ()

    def __post_init__(self) -> None:
        merged: list[range] = []
        for each in sorted(filter(None, self.ranges), key=lambda each: each.start):
            if merged and each.start <= merged[-1].stop:
                merged[-1] = range(merged[-1].start, max(merged[-1].stop, each.stop))
            else:
                merged.append(each)
        object.__setattr__(self, "ranges", tuple(merged))

    @classmethod
    def of(cls, ports: Iterable[int]) -> Self:
        """The set of these ports."""
        return cls(tuple(range(port, port + 1) for port in ports))

    @classmethod
    def parse(cls, items: Iterable[object]) -> Self:
        """The set with these `items`. Raises ValueError."""
        return cls(tuple(parse_range(str(item)) for item in items))

    @property
    def items(self) -> list[int | str]:
        """The ports as a configuration has them, such as 8080 and `20000-29999`; two adjacent ones are no range."""
        return [item for each in self.ranges for item in _items(each)]

    def __contains__(self, port: object) -> bool:
        if not isinstance(port, int):
            return False
        at = bisect_right(self.ranges, port, key=lambda each: each.start)
        return at > 0 and port in self.ranges[at - 1]

    def __iter__(self) -> Iterator[int]:
        return (port for each in self.ranges for port in each)

    def __len__(self) -> int:
        return sum(map(len, self.ranges))

    def __or__(self, second: Ports) -> Ports:
        return Ports(self.ranges + second.ranges)

    def __and__(self, second: Ports) -> Ports:
        common: list[range] = []
        firsts, seconds = iter(self.ranges), iter(second.ranges)
        a, b = next(firsts, None), next(seconds, None)
        while a is not None and b is not None:
            common.append(range(max(a.start, b.start), min(a.stop, b.stop)))
            if a.stop < b.stop:
                a = next(firsts, None)
            else:
                b = next(seconds, None)
        return Ports(tuple(common))

    def __sub__(self, second: Ports) -> Ports:
        starts, stops = (0, *(each.stop for each in second.ranges)), (*(each.start for each in second.ranges), _END)
        return self & Ports(tuple(map(range, starts, stops)))

    def __str__(self) -> str:
        return ", ".join(map(str, self.items))


NO_PORTS: Final = Ports()

ALL_PORTS: Final = Ports((range(_END),))
"""Also 0, the port of sockets that are not bound."""


def parse_range(text: str) -> range:
    """From `8080` or `20000-29999`. Raises ValueError."""
    match = re.fullmatch(r"([1-9]\d{0,4})(?:-([1-9]\d{0,4}))?", text, re.ASCII)
    if match is not None:
        first, last = int(match[1]), int(match[2] or match[1])
        if first <= last < _END:
            return range(first, last + 1)
    raise ValueError(f"{not_decimal(text)}allowed: a port from 1 to 65535, or a range of ports such as 20000-29999")


def _items(ports: range) -> Iterable[int | str]:
    return ports if len(ports) <= _LONGEST_LISTED_SINGLY else (f"{ports[0]}-{ports[-1]}",)
