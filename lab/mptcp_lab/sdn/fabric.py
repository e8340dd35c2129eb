"""Switches and the links between them: which ways lead from a host to another."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Mapping


class End(NamedTuple):
    """An end of a link at a switch: the number of its port there."""

    switch: str
    port: int


class Hop(NamedTuple):
    """How a packet passes a switch: by which port it enters and leaves."""

    switch: str
    enters: int
    leaves: int


Path = tuple[Hop, ...]


def reverse(path: Path) -> Path:
    """The path in the other direction."""
    return tuple(Hop(hop.switch, hop.leaves, hop.enters) for hop in reversed(path))


@dataclass(frozen=True, slots=True)
class Fabric:
    """`links` by name; `hosts`: where each address is attached."""

    switches: tuple[str, ...]
    links: Mapping[str, tuple[End, End]]
    hosts: Mapping[str, End]

    @classmethod
    def from_json(cls, data: Any) -> Self:  # noqa: ANN401
        """What `to_json` has made."""
        return cls(
            tuple(data["switches"]),
            {name: (End(*near), End(*far)) for name, (near, far) in data["links"].items()},
            {address: End(*end) for address, end in data["hosts"].items()},
        )

    def to_json(self) -> dict[str, object]:
        """The fabric as values of JSON."""
        return {"switches": self.switches, "links": dict(self.links), "hosts": dict(self.hosts)}

    def paths(self, source: str, destination: str) -> list[Path]:
        """Paths between two addresses, the shortest first, no two of which have a link in common."""
        begin, end = self.hosts[source], self.hosts[destination]
        paths: list[Path] = []
        used: set[str] = set()
        while (path := self._shortest(begin, end, used)) is not None:
            paths.append(path)
            if begin.switch == end.switch:
                break
            used |= self.links_of(path)
        return paths

    def links_of(self, path: Path) -> set[str]:
        """The names of the links between the switches of a path."""
        ends = {End(hop.switch, hop.leaves) for hop in path[:-1]}
        return {name for name, link in self.links.items() if ends & set(link)}

    def _shortest(self, begin: End, end: End, without: set[str]) -> Path | None:
        """Breadth first; among equally short ones, by the links that come first."""
        known: dict[str, Path] = {begin.switch: ()}
        enters = {begin.switch: begin.port}
        waiting = deque([begin.switch])
        while waiting and end.switch not in known:
            switch = waiting.popleft()
            for name, link in self.links.items():
                for near, far in (link, link[::-1]):
                    if near.switch == switch and far.switch not in known and name not in without:
                        known[far.switch] = (*known[switch], Hop(switch, enters[switch], near.port))
                        enters[far.switch] = far.port
                        waiting.append(far.switch)
        if end.switch not in known:
            return None
        return (*known[end.switch], Hop(end.switch, enters[end.switch], end.port))
