"""The classifier `nft`: one map lookup per packet, whatever the number of subflows, in a table of our own.

The map has the class of a subflow, which becomes the priority of its packets. HTB looks at that before it asks a
filter, as with the classifier `socket`: there is no filter, and no fwmark of another program has an effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.netlink_socket import DumpInterrupted
from mptcp_throttle.model import FourTuple
from mptcp_throttle.own_chains import BEFORE_NAT
from mptcp_throttled.kernel.classes.iptables import OwnChain
from mptcp_throttled.kernel.classes.nft_elements import MAP_ELEMENT_BYTES, decode_map_element, encode_map_element
from mptcp_throttled.kernel.classes.nft_tables import OwnTables
from mptcp_throttled.vocabulary.kernel_state import IP_VERSIONS, AssignmentState

_READINGS: Final = 5


class NftClassifier:
    """The classifier `nft`. `priority` is that of its chains: `BEFORE_NAT` or `AFTER_NAT`."""

    kind = "nft"
    needs_filter = False

    def __init__(self, priority: int = BEFORE_NAT) -> None:
        self._tables = OwnTables(priority)
        self._chains = {version: OwnChain(version) for version in IP_VERSIONS}  # of the classifier `rules`
        self._last: dict[int, _Contents] = {}
        self._counts: dict[int, int | None] = {}
        self._generation: int | None = None  # of nftables when it had `_counts`; None: unknown

    def close(self) -> None:
        self._tables.close()

    def require(self) -> None:
        self._tables.require()

    def read(self) -> dict[int, AssignmentState]:
        states = self._at_one_time()
        for version in self._left():
            states[version] = AssignmentState(states[version].assignments if version in states else {}, altered=True)
        self._counts = {version: None if state.altered else len(state.assignments) for version, state in states.items()}
        return states

    def count(self) -> dict[int, int | None]:
        """Takes constant time while no other program changes nftables; otherwise everything of ours is read."""
        if self._generation is None or self._generation != self._tables.generation():
            self.read()
        return dict(self._counts)

    def make(self, ip_version: int, assignments: Mapping[FourTuple, int]) -> None:
        """In one transaction."""
        generation, self._generation = self._generation, None
        self._tables.make(ip_version, [encode_map_element(*assignment) for assignment in assignments.items()])
        self._chains[ip_version].remove()
        self._note(generation, ip_version, len(assignments))

    def change(self, ip_version: int, add: Mapping[FourTuple, int], remove: Mapping[FourTuple, int]) -> None:
        """In one transaction."""
        generation, self._generation = self._generation, None
        added, removed = (
            [encode_map_element(*assignment) for assignment in assignments.items()] for assignments in (add, remove)
        )
        self._tables.change(ip_version, added, removed)
        self._note(generation, ip_version, (self._counts.get(ip_version) or 0) + len(add) - len(remove))

    def remove(self, ip_version: int) -> None:
        self._generation = None
        self._chains[ip_version].remove()
        self._tables.remove(ip_version)

    def _at_one_time(self) -> dict[int, AssignmentState]:
        """Our tables: nftables was not changed while they were read, or they are the same when read again.

        A program that keeps changing its own tables must not keep us from reading ours.
        """
        self._generation = last = None
        for _ in range(_READINGS):
            before = self._tables.generation()
            try:
                states = {version: state for version in IP_VERSIONS if (state := self._table(version)) is not None}
            except KernelError:
                if self._tables.generation() == before:
                    raise
                continue  # a table has gone since
            if self._tables.generation() == before:
                self._generation = before
                return states
            if states == last:
                return states
            last = states
        raise DumpInterrupted("nft list ruleset")

    def _table(self, ip_version: int) -> AssignmentState | None:
        is_as_made = self._tables.is_as_made(ip_version)
        if not is_as_made:
            return None if is_as_made is None else AssignmentState({}, altered=True)
        self._last[ip_version] = contents = _read_contents(
            ip_version, self._last.get(ip_version), self._tables.elements(ip_version)
        )
        return contents.state

    def _left(self) -> set[int]:
        """The IP versions for which the classifier `rules` has left something."""
        return {v for v, chain in self._chains.items() if chain.read(lambda _: AssignmentState({})) is not None}

    def _note(self, generation: int | None, ip_version: int, count: int) -> None:
        """A transaction of ours has made the next generation, and `count` assignments."""
        self._counts[ip_version] = count
        self._generation = None if generation is None else (generation + 1) % 2**32


class _Contents(NamedTuple):
    """Raw elements of a map, and the assignments: fewer, if some elements are not as we add them, or are there twice.

    `state` shows `assignments` through a proxy, which readers cannot change. Copying a dict hashes no key again.
    """

    elements: frozenset[bytes]
    assignments: dict[FourTuple, int]
    state: AssignmentState


_NOTHING: Final = _Contents(frozenset(), {}, AssignmentState({}))


def _read_contents(ip_version: int, last: _Contents | None, rows: Iterable[bytes]) -> _Contents:
    """What the kernel has listed in `rows`, each several elements; only those that are not in `last` are decoded."""
    size, decode = MAP_ELEMENT_BYTES[ip_version], partial(decode_map_element, ip_version=ip_version)
    raw = frozenset(row[begin : begin + size] for row in rows for begin in range(0, len(row), size))
    if last is None or len(last.assignments) < len(last.elements):
        last = _NOTHING
    if raw == last.elements:
        return last
    assignments = last.assignments.copy()
    for removed in last.elements - raw:
        assignment = decode(removed)
        if assignment is not None:
            del assignments[assignment[0]]
    for added in raw - last.elements:
        assignment = decode(added)
        if assignment is not None:
            assignments[assignment[0]] = assignment[1]
    is_altered = len(assignments) < len(raw)
    return _Contents(raw, assignments, AssignmentState(MappingProxyType(assignments), altered=is_altered))
