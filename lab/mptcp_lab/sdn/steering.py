"""Which path each flow gets: subflows of a connection, known by its token, share no link where that can be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_lab.sdn.fabric import reverse
from mptcp_sniffer.handshake import token_of
from mptcp_sniffer.options import MpCapable, MpJoinSyn, decode
from mptcp_sniffer.segment import PROTOCOL_TCP, Flag

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mptcp_lab.sdn.fabric import Fabric, Path

TCP: Final = PROTOCOL_TCP
UDP: Final = 17


class Flow(NamedTuple):
    """The packets of a protocol from one end to another."""

    protocol: int
    source: str
    source_port: int
    destination: str
    destination_port: int

    def back(self) -> Flow:
        """The flow of the packets in the other direction."""
        return Flow(self.protocol, self.destination, self.destination_port, self.source, self.source_port)


class Steering:
    """Chooses the paths of flows in a fabric, and remembers them.

    Connections begin on the `primary` (from 1) of the paths between two hosts, the shortest first. No path over a link
    that has failed is chosen where there is another.
    """

    def __init__(self, fabric: Fabric, primary: int) -> None:
        self.fabric = fabric
        self.paths: dict[Flow, Path] = {}
        self.subflows: dict[int, list[Flow]] = {}
        self._chosen: dict[Flow, Path] = {}
        self._failed: set[str] = set()
        self._primary = primary

    def path_of_first_packet(self, flow: Flow, flags: int, options: bytes) -> Path | None:
        """The path of a flow whose SYN, SYN/ACK or first datagram has come; None if there is none.

        `flags` and `options` are those of TCP.
        """
        path = self._choose(flow, flags, options)
        if path is not None:
            self.paths[flow] = self._chosen[flow] = path
        return path

    def _choose(self, flow: Flow, flags: int, options: bytes) -> Path | None:
        if not {flow.source, flow.destination} <= self.fabric.hosts.keys():
            return None
        decoded = decode(options, flags).options
        if flags & Flag.SYN and flags & Flag.ACK and flow.back() in self.paths:
            self._learn(flow.back(), decoded)
            return reverse(self.paths[flow.back()])
        for option in decoded:
            if isinstance(option, MpJoinSyn) and option.token in self.subflows:
                return self._apart_from(flow, self.subflows[option.token])
        known = self._usable(flow)
        return known[min(self._primary, len(known)) - 1] if known else None

    def _learn(self, flow: Flow, options: Iterable[object]) -> None:
        """The SYN/ACK of a connection's first subflow has the key from which the token of JOINs is made."""
        for option in options:
            if isinstance(option, MpCapable) and option.sender_key is not None:
                self.subflows[int(token_of(option.version, option.sender_key))] = [flow]

    def _apart_from(self, flow: Flow, subflows: list[Flow]) -> Path | None:
        siblings = [self.paths[sibling] for sibling in subflows if sibling != flow]
        taken = set[str]().union(*map(self.fabric.links_of, siblings))
        known = self._usable(flow)
        if flow not in subflows:
            subflows.append(flow)
        return next((path for path in known if not taken & self.fabric.links_of(path)), known[0] if known else None)

    def _usable(self, flow: Flow) -> list[Path]:
        """The paths of a flow, without the paths over failed links if there are working paths."""
        paths = self.fabric.paths(flow.source, flow.destination)
        return [path for path in paths if self._works(path)] or paths

    def _works(self, path: Path) -> bool:
        return not self._failed & self.fabric.links_of(path)

    def fail(self, link: str) -> dict[Flow, Path]:
        """A link has failed: new paths for the flows over it, as far as there are any; they are remembered."""
        self._failed.add(link)
        moved = {}
        for flow, path in self.paths.items():
            working = filter(self._works, self.fabric.paths(flow.source, flow.destination))
            detour = next(working, None)
            if not self._works(path) and detour is not None:
                moved[flow] = detour
        self.paths |= moved
        return moved

    def repair(self, link: str) -> dict[Flow, Path]:
        """A link works again: the flows that go back to the path that was chosen for them."""
        self._failed.discard(link)
        back = {flow: path for flow, path in self._chosen.items() if path != self.paths[flow] and self._works(path)}
        self.paths |= back
        return back
