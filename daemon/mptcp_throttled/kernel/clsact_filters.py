"""Our filters at the egress and the ingress of an interface (clsact), beside those of other programs.

All programs share clsact: it is added if it is missing, and deleted again only if we have added it and no filter uses
it any more.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from socket import htons
from struct import Struct
from typing import Final

from pyroute2.netlink.rtnl import TC_H_CLSACT

from mptcp_throttle.durable_file import write_atomically
from mptcp_throttle.linux.kernel_error import KernelError, fault_point, os_errors
from mptcp_throttle.linux.netlink_codec import attribute, attributes, text
from mptcp_throttled.kernel.interfaces import Interface, all_interfaces, exists
from mptcp_throttled.kernel.tc import Filter, Qdisc, TrafficControl

_PRIORITY: Final = 77
"""Of our filters, if those of other programs come later: the kernel itself chooses them from 49152 down."""

_FILE_NAME: Final = re.compile(r"clsact-(\d+)")

_CLSACT: Final = Qdisc("clsact", 0xFFFF_0000, TC_H_CLSACT, None)
_ALL_PROTOCOLS: Final = htons(0x0003)  # ETH_P_ALL
# include/uapi/linux/pkt_cls.h
_TCA_BPF_FD, _TCA_BPF_NAME, _TCA_BPF_FLAGS = 6, 7, 8
_TCA_BPF_FLAG_ACT_DIRECT: Final = 1
_UINT32: Final = Struct("=I")


class FilterSet(Enum):
    """Our filters with one purpose: the handle ("MP", and the next), and how far they come before the last of ours."""

    UPLINKS = 0x4D50, 0
    STEERING = 0x4D51, 1

    @property
    def handle(self) -> int:
        """By which tc addresses the filter."""
        return self.value[0]

    @property
    def rank(self) -> int:
        """How many of our sets come after this."""
        return self.value[1]

    @property
    def label(self) -> str:
        """The name that tc shows."""
        return "mptcp-throttle" if self is FilterSet.UPLINKS else "mptcp-throttle-steering"


class Hook(Enum):
    """Which packets a filter sees: the parent of the filter (include/uapi/linux/pkt_sched.h)."""

    INGRESS = 0xFFFF_FFF2
    EGRESS = 0xFFFF_FFF3


class ClsactFilters:
    """Attaches programs to what arrives or leaves through an interface. All methods raise KernelError.

    `directory` has a file for each interface to which we have added clsact; a reboot empties it.
    """

    def __init__(self, directory: Path, ours: FilterSet = FilterSet.UPLINKS) -> None:
        self._directory = directory
        self._ours = ours
        self._tc = TrafficControl()

    def close(self) -> None:
        """Close the sockets; the filters stay."""
        self._tc.close()

    @property
    def ports(self) -> frozenset[int]:
        """The netlink ports (nlmsg_pid) of our requests."""
        return self._tc.ports

    def interfaces(self) -> list[Interface]:
        """The interfaces with a filter of this set, or a clsact that we have added."""
        return [link for link in all_interfaces() if self._record(link).exists() or self._all_of_ours(link)]

    def with_filters(self) -> list[Interface]:
        """The interfaces with a filter of this set."""
        return [link for link in all_interfaces() if self._all_of_ours(link)]

    def attached(self, interface: Interface) -> set[Hook]:
        """Where our filter is there, and comes first."""
        directions = set()
        for direction in Hook:
            ours, foreign = self._filters(interface, direction)
            if [_priority_of(filter_) for filter_ in ours] == [self._priority_before(foreign)]:
                directions.add(direction)
        return directions

    def attach(self, interface: Interface, programs: Mapping[Hook, int]) -> None:
        """Attach the programs with these file descriptors, in place of those that are there."""
        fault_point("tc filter add clsact")
        self._add_clsact(interface)
        for direction in Hook:
            ours, foreign = self._filters(interface, direction)
            for filter_ in ours:
                self._tc.delete_filter(interface, direction.value, filter_)
            if direction in programs:
                self._add(interface, direction, programs[direction], self._priority_before(foreign))

    def _add(self, interface: Interface, direction: Hook, program: int, priority: int) -> None:
        options = (
            attribute(_TCA_BPF_FD, _UINT32.pack(program))
            + attribute(_TCA_BPF_NAME, self._ours.label.encode() + b"\0")
            + attribute(_TCA_BPF_FLAGS, _UINT32.pack(_TCA_BPF_FLAG_ACT_DIRECT))
        )
        filter_ = Filter("bpf", self._ours.handle, priority << 16 | _ALL_PROTOCOLS, options)
        self._tc.add_filter(interface, direction.value, filter_)

    def detach(self, interface: Interface) -> None:
        """Leave the interface as it was before `attach`."""
        for direction, filter_ in self._all_of_ours(interface):
            self._tc.delete_filter(interface, direction.value, filter_)
        record = self._record(interface)
        if not record.exists():
            return
        remaining = [filter_ for hook in Hook for filter_ in self._tc.filters(interface, hook.value)]
        if any(_set_of(filter_) is not None for filter_ in remaining):
            return  # the last of our sets decides
        if self._has_clsact(interface) and not remaining:
            self._tc.delete_qdisc(interface, _CLSACT)
        with os_errors(f"{record}"):
            record.unlink(missing_ok=True)

    def forget_stale(self) -> None:
        """Delete the records of interfaces that have gone."""
        self._forget_stale(_FILE_NAME)

    def _forget_stale(self, names: re.Pattern[str]) -> None:
        for entry in self._directory.glob("*-*"):
            name = names.fullmatch(entry.name)
            if name is not None and not exists(int(name[1])):
                with os_errors(f"{entry}"):
                    entry.unlink(missing_ok=True)

    def _add_clsact(self, interface: Interface) -> None:
        if self._has_clsact(interface):
            return
        record = self._record(interface)
        # First: a clsact without a record would be taken for another program's.
        with os_errors(f"{record}"):
            write_atomically(record, "")
        try:
            self._tc.add_qdisc(interface, _CLSACT)
        except KernelError as error:
            with os_errors(f"{record}"):
                record.unlink(missing_ok=True)
            if error.number != errno.EEXIST:
                raise
            if not self._has_clsact(interface):
                # It has no egress: the kernel would attach a filter for that to its ingress.
                raise KernelError(f"add clsact to {interface.name}, which has a qdisc ingress", errno.EEXIST) from error

    def _has_clsact(self, interface: Interface) -> bool:
        # A qdisc `ingress` has the same parent.
        qdiscs = self._tc.qdiscs().get(interface.index, [])
        return any(qdisc.kind == _CLSACT.kind and qdisc.parent == _CLSACT.parent for qdisc in qdiscs)

    def _all_of_ours(self, interface: Interface) -> list[tuple[Hook, Filter]]:
        return [(direction, filter_) for direction in Hook for filter_ in self._filters(interface, direction)[0]]

    def _filters(self, interface: Interface, direction: Hook) -> tuple[list[Filter], list[Filter]]:
        """Those of this set, and those of other programs."""
        filters = [(_set_of(f), f) for f in self._tc.filters(interface, direction.value)]
        return [f for owner, f in filters if owner is self._ours], [f for owner, f in filters if owner is None]

    def _priority_before(self, foreign: Iterable[Filter]) -> int:
        """A priority before all of these, if possible: a filter that decides hides the packet from all later ones."""
        first = min(map(_priority_of, foreign), default=_PRIORITY + 1)
        return max(min(_PRIORITY, first - 1) - self._ours.rank, 0) or _PRIORITY - self._ours.rank

    def _record(self, interface: Interface) -> Path:
        return self._directory / f"clsact-{interface.index}"


def _set_of(filter_: Filter) -> FilterSet | None:
    """The set of ours that a filter belongs to; None: it is another program's."""
    if (filter_.kind, filter_.info & 0xFFFF) != ("bpf", _ALL_PROTOCOLS) or filter_.options is None:
        return None
    name = text(attributes(filter_.options, only={_TCA_BPF_NAME}).get(_TCA_BPF_NAME, b"\0"))
    return next((each for each in FilterSet if (each.handle, each.label) == (filter_.handle, name)), None)


def _priority_of(filter_: Filter) -> int:
    return filter_.info >> 16
