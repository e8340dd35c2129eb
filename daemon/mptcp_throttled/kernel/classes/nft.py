"""The back end `nft`: one map lookup per packet, whatever the number of subflows, in a table of our own.

The map has the class of a subflow, which becomes the priority of its packets. HTB looks at that before it asks a
filter, as with the back end `socket`: there is no filter, and no assignment of another program has an effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.netlink_socket import DumpInterrupted
from mptcp_throttle.model import FourTuple
from mptcp_throttled.kernel.classes.contents import Contents, read_contents
from mptcp_throttled.kernel.classes.nft_elements import MAP_ELEMENT_BYTES, decode_map_element, encode_map_element
from mptcp_throttled.kernel.classes.packet_classifier import PacketClassifier
from mptcp_throttled.vocabulary.kernel_state import IP_VERSIONS, AssignmentState

_READINGS: Final = 5


class NftClassifier(PacketClassifier):
    """The back end `nft`. For one thread only; all methods raise KernelError."""

    kind = "nft"
    needs_filter = False

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[int, Contents] = {}
        self._counts: dict[int, int | None] = {}
        self._generation: int | None = None  # of nftables when it had `_counts`; None: unknown

    def require(self) -> None:
        """Raise KernelError if the kernel cannot have our table for IPv4."""
        self._tables.require()

    def read(self) -> dict[int, AssignmentState]:
        """Our tables by IP version, with the elements of their maps."""
        found = self._at_one_time()
        for version in self._left():
            found[version] = AssignmentState(found[version].assignments if version in found else {}, altered=True)
        self._counts = {version: None if state.altered else len(state.assignments) for version, state in found.items()}
        return found

    def count(self) -> dict[int, int | None]:
        """The number of assignments by IP version; None for an altered table.

        Takes constant time while nobody else changes nftables; then everything of ours is read.
        """
        if self._generation is None or self._generation != self._tables.generation():
            self.read()
        return dict(self._counts)

    def make(self, ip_version: int, assignments: Mapping[FourTuple, int]) -> None:
        """Make our table with exactly these assignments, in one transaction; one that exists is replaced."""
        generation, self._generation = self._generation, None
        self._tables.make(ip_version, [encode_map_element(*assignment) for assignment in assignments.items()])
        self._chains[ip_version].remove()
        self._sets.destroy_all(ip_version)
        self._note(generation, ip_version, len(assignments))

    def change(self, ip_version: int, add: Mapping[FourTuple, int], remove: Mapping[FourTuple, int]) -> None:
        """Remove and add assignments, in one transaction; an assignment in both is changed."""
        generation, self._generation = self._generation, None
        added, removed = (
            [encode_map_element(*assignment) for assignment in assignments.items()] for assignments in (add, remove)
        )
        self._tables.change(ip_version, added, removed)
        self._note(generation, ip_version, (self._counts.get(ip_version) or 0) + len(add) - len(remove))

    def remove(self, ip_version: int) -> None:
        """Remove everything of ours."""
        self._generation = None
        super().remove(ip_version)

    def _at_one_time(self) -> dict[int, AssignmentState]:
        """Our tables: nobody has changed nftables while they were read, or they are the same when read again.

        A program that keeps changing its own tables must not keep us from reading ours.
        """
        self._generation = last = None
        for _ in range(_READINGS):
            before = self._tables.generation()
            try:
                found = {version: state for version in IP_VERSIONS if (state := self._table(version)) is not None}
            except KernelError:
                if self._tables.generation() == before:
                    raise
                continue  # a table has gone meanwhile
            if self._tables.generation() == before:
                self._generation = before
                return found
            if found == last:
                return found
            last = found
        raise DumpInterrupted("nft list ruleset")

    def _table(self, ip_version: int) -> AssignmentState | None:
        is_as_made = self._tables.is_as_made(ip_version)
        if not is_as_made:
            return None if is_as_made is None else AssignmentState({}, altered=True)
        self._last[ip_version] = contents = read_contents(
            self._last.get(ip_version),
            self._tables.elements(ip_version),
            MAP_ELEMENT_BYTES[ip_version],
            partial(decode_map_element, ip_version=ip_version),
        )
        return contents.state

    def _left(self) -> set[int]:
        """The IP versions for which an iptables back end has left something."""
        with_chain = {v for v, chain in self._chains.items() if chain.read(lambda _: AssignmentState({})) is not None}
        return with_chain | {own.ip_version for own in self._sets.present()}

    def _note(self, generation: int | None, ip_version: int, count: int) -> None:
        """A transaction of ours has made the next generation, and `count` assignments."""
        self._counts[ip_version] = count
        self._generation = None if generation is None else (generation + 1) % 2**32
