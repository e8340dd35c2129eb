"""The back end `ipset`: one set lookup per packet, whatever the number of subflows.

Our chain has one rule per proxy port, `-p tcp --sport PORT -j SET --map-set mptcp-throttle-4-PORT dst,dst,src
--map-mark`; its set maps client address, client port and proxy address to a mark.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import Address, Endpoint, FourTuple
from mptcp_throttled.kernel.classes.contents import Contents, read_contents
from mptcp_throttled.kernel.classes.elements import ELEMENT_BYTES, Element, decode_element, encode_element
from mptcp_throttled.kernel.classes.ipset import MAX_MARKS, OwnSet, SetHeader
from mptcp_throttled.kernel.classes.iptables import OwnChain
from mptcp_throttled.kernel.classes.iptables_classifier import IptablesClassifier
from mptcp_throttled.vocabulary.class_ids import MarkedTraffic, mark_shift
from mptcp_throttled.vocabulary.kernel_state import AssignmentState

LOOKED_UP = "dst,dst,src"
"""The packet fields that the SET target looks up: client address, client port, proxy address."""


class IpsetClassifier(IptablesClassifier):
    """The back end `ipset`. For one thread only; all methods raise KernelError."""

    kind = "ipset"

    def __init__(self, marking: MarkedTraffic, max_marks: int = MAX_MARKS) -> None:
        super().__init__(marking.mask, max_marks)
        self._ports = marking.ports
        self._last: dict[OwnSet, Contents] = {}

    def require(self) -> None:
        """Raise KernelError if the kernel has no mangle table for IPv4, no such sets, or no SET target."""
        super().require()
        self._sets.require()
        self._chains[4].require_target("SET")

    def read(self) -> dict[int, AssignmentState]:
        """Our chains by IP version, with the marks of their sets; altered if a table of another back end is there."""
        found = {}
        for version, present in self._present().items():
            state = self._read_chain(version, present)
            if state is not None:
                found[version] = state if state.altered else self._with_marks(present)
        for version in self._tables.present():
            found[version] = AssignmentState(found[version].assignments if version in found else {}, altered=True)
        return found

    def count(self) -> dict[int, int | None]:
        """The number of marks by IP version; None for an altered chain."""
        found: dict[int, int | None] = {}
        for version, present in self._present().items():
            state = self._read_chain(version, present)
            if state is not None:
                sizes = [header.elements for header in present.values() if header.elements is not None]
                found[version] = None if state.altered or len(sizes) < len(present) else sum(sizes)
        return found

    def make(self, ip_version: int, marks: Mapping[FourTuple, int]) -> None:
        """Make our chain and sets with exactly these marks; a set that exists is swapped for a new one, atomically."""
        elements = self._elements(ip_version, marks)
        wanted, present = list(elements), self._sets.present()
        filled = {own: own._replace(new=own in present) for own in wanted}
        self._sets.destroy(*(own for own in filled.values() if own in present))
        try:
            self._make(ip_version, filled, elements, present)
        except KernelError:
            for new in filled.values():
                with suppress(KernelError):
                    self._sets.destroy(new)
            raise
        kept = {*wanted, *filled.values()}
        self._sets.destroy(*(own for own in present if own.ip_version == ip_version and own not in kept))
        self._tables.remove(ip_version)

    def change(self, ip_version: int, add: Mapping[FourTuple, int], remove: Mapping[FourTuple, int]) -> None:
        """Remove and add marks; a mark in both is changed in place. A refused addition undoes the change."""
        removed = self._elements(ip_version, {ends: minor for ends, minor in remove.items() if ends not in add})
        added = self._elements(ip_version, add)
        for own, elements in removed.items():
            self._sets.delete(own, elements)
        try:
            for own, elements in added.items():
                self._sets.add(own, elements)
        except KernelError:
            with suppress(KernelError):
                for own, elements in added.items():
                    self._sets.delete(own, elements)
                for own, elements in self._elements(ip_version, remove).items():
                    self._sets.add(own, elements)
            raise

    def _make(
        self,
        ip_version: int,
        filled: Mapping[OwnSet, OwnSet],
        elements: Mapping[OwnSet, Sequence[bytes]],
        present: Mapping[OwnSet, SetHeader],
    ) -> None:
        chain = self._chains[ip_version]
        for own, new in filled.items():
            self._sets.create(new)
            self._sets.add(new, elements[own])
        if not all(present[own].is_as_made for own in filled if own in present):
            # A set of another type cannot be swapped, and a set cannot be destroyed while a rule refers to it.
            chain.remove()
        for own, new in filled.items():
            if new.new:
                self._put_in_place(new, own, is_as_made=present[own].is_as_made)
        chain.make(lambda: [self._rule(chain, own) for own in filled])

    def _own_sets(self, ip_version: int) -> list[OwnSet]:
        return [OwnSet(ip_version, port) for port in self._ports]

    def _present(self) -> dict[int, dict[OwnSet, SetHeader]]:
        """Our sets by IP version."""
        present = self._sets.present()
        return {
            version: {own: header for own, header in present.items() if own.ip_version == version}
            for version in self._chains
        }

    def _read_chain(self, ip_version: int, present: Mapping[OwnSet, SetHeader]) -> AssignmentState | None:
        """Our chain without its marks; None if there is neither chain nor set."""
        chain = self._chains[ip_version]
        state = chain.read(lambda rules: AssignmentState({}, not self._are_ours(ip_version, rules, present)))
        if state is None:
            return AssignmentState({}, altered=True) if present else None
        is_as_made = all(header.is_as_made for header in present.values())
        return AssignmentState({}, state.altered or not is_as_made or present.keys() != set(self._own_sets(ip_version)))

    def _with_marks(self, present: Iterable[OwnSet]) -> AssignmentState:
        contents = [self._contents(own) for own in present]
        if len(contents) == 1:
            return contents[0].state
        marks = {ends: minor for one in contents for ends, minor in one.state.assignments.items()}
        return AssignmentState(marks, any(one.state.altered for one in contents))

    def _contents(self, own: OwnSet) -> Contents:
        self._last[own] = contents = read_contents(
            self._last.get(own),
            self._sets.elements(own),
            ELEMENT_BYTES[own.ip_version],
            partial(_decode, own=own, mask=self._mask),
        )
        return contents

    def _put_in_place(self, new: OwnSet, own: OwnSet, *, is_as_made: bool) -> None:
        if is_as_made:
            self._sets.swap(new, own)
            self._sets.destroy(new)
        else:
            self._sets.destroy(own)
            self._sets.rename(new, own)

    def _are_ours(self, ip_version: int, rules: Sequence[Any], present: Mapping[OwnSet, SetHeader]) -> bool:
        wanted = self._own_sets(ip_version)
        # libxtables refuses to build a rule for a set that does not exist.
        if len(rules) != len(wanted) or not present.keys() >= set(wanted):
            return False
        chain = self._chains[ip_version]
        return all(rule == self._rule(chain, own) for rule, own in zip(rules, wanted, strict=True))

    def _rule(self, chain: OwnChain, own: OwnSet) -> Any:
        rule = chain.new_rule()
        rule.create_match("tcp").sport = str(own.port)
        target = rule.create_target("SET")
        target.map_set = [own.name, LOOKED_UP]
        target.map_mark = ""
        return rule

    def _elements(self, ip_version: int, marks: Mapping[FourTuple, int]) -> dict[OwnSet, list[bytes]]:
        shift = mark_shift(self._mask)
        elements: dict[OwnSet, list[bytes]] = {own: [] for own in self._own_sets(ip_version)}
        for ends, minor in marks.items():
            if ends.proxy.port not in self._ports:
                raise KernelError(f"port {ends.proxy.port} is not among proxy.ports", errno.EINVAL)
            element = Element(ends.client.address, ends.client.port, ends.proxy.address, minor << shift, self._mask)
            elements[OwnSet(ip_version, ends.proxy.port)].append(encode_element(element))
        return elements


def _decode(raw: bytes, own: OwnSet, mask: int) -> tuple[FourTuple, int] | None:
    element = decode_element(raw, own.ip_version)
    if element is None or element.mask != mask or element.mark & ~mask:
        return None
    ends = FourTuple(Endpoint(element.client, element.port), _proxy(element.proxy, own.port))
    return ends, element.mark >> mark_shift(mask)


# All subflows end at a few proxy sockets, so equal values share one object.
@lru_cache
def _proxy(address: Address, port: int) -> Endpoint:
    return Endpoint(address, port)
