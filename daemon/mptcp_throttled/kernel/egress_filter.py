"""Our filter at the egress of an interface (clsact), beside those of others.

clsact is there for whoever wants it: it is added if nobody has, and deleted again only if we have added it and nobody
else uses it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from pathlib import Path
from socket import htons
from struct import Struct
from typing import Final

from mptcp_throttle.linux.kernel_error import KernelError, fault_point, os_errors
from mptcp_throttle.linux.netlink_codec import attribute, attributes, text
from mptcp_throttled.durable_file import write_atomically
from mptcp_throttled.kernel.tc import Filter, Interface, Qdisc, TrafficControl

_PRIORITY: Final = 77
"""Of our filter, if those of others come later: the kernel itself chooses them from 49152 down."""

_HANDLE: Final = 0x4D50
"""Of our filter ("MP")."""

_NAME: Final = "mptcp-throttle"
_FILE_NAME: Final = re.compile(r"clsact-(\d+)")

# include/uapi/linux/pkt_sched.h: TC_H_CLSACT, and TC_H_MIN_INGRESS, TC_H_MIN_EGRESS below it
_CLSACT: Final = Qdisc("clsact", 0xFFFF_0000, 0xFFFF_FFF1, None)
_INGRESS: Final = 0xFFFF_FFF2
_EGRESS: Final = 0xFFFF_FFF3
_ALL_PROTOCOLS: Final = htons(0x0003)  # ETH_P_ALL
# include/uapi/linux/pkt_cls.h
_TCA_BPF_FD, _TCA_BPF_NAME, _TCA_BPF_FLAGS = 6, 7, 8
_TCA_BPF_FLAG_ACT_DIRECT: Final = 1
_UINT32: Final = Struct("=I")


class EgressFilter:
    """Attaches a program to what leaves through an interface. All methods raise KernelError.

    `directory` has a file for each interface to which we have added clsact; a reboot empties it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tc = TrafficControl()

    def close(self) -> None:
        """Close the sockets; the filter stays."""
        self._tc.close()

    @property
    def ports(self) -> frozenset[int]:
        """The netlink ports (nlmsg_pid) of our requests."""
        return self._tc.ports

    def interfaces(self) -> list[Interface]:
        """Those that have our filter, or a clsact that we have added."""
        return [one for one in self._tc.interfaces() if self._record(one).exists() or self._ours(one)]

    def is_attached(self, interface: Interface) -> bool:
        """Whether our filter is there, where it comes first."""
        ours, others = self._filters(interface)
        return [_priority_of(filter_) for filter_ in ours] == [_priority_before(others)]

    def attach(self, interface: Interface, program: int) -> None:
        """Attach the program with this file descriptor, in place of the one that is there."""
        fault_point("tc filter add egress")
        self._add_clsact(interface)
        ours, others = self._filters(interface)
        for filter_ in ours:
            self._tc.delete_filter(interface, _EGRESS, filter_)
        options = (
            attribute(_TCA_BPF_FD, _UINT32.pack(program))
            + attribute(_TCA_BPF_NAME, _NAME.encode() + b"\0")
            + attribute(_TCA_BPF_FLAGS, _UINT32.pack(_TCA_BPF_FLAG_ACT_DIRECT))
        )
        info = _priority_before(others) << 16 | _ALL_PROTOCOLS
        self._tc.add_filter(interface, _EGRESS, Filter("bpf", _HANDLE, info, options))

    def detach(self, interface: Interface) -> None:
        """Leave the interface as it was before `attach`."""
        for filter_ in self._ours(interface):
            self._tc.delete_filter(interface, _EGRESS, filter_)
        record = self._record(interface)
        if not record.exists():
            return
        if self._has_clsact(interface) and not self._filters_of_others(interface):
            self._tc.delete_qdisc(interface, _CLSACT)
        with os_errors(f"{record}"):
            record.unlink(missing_ok=True)

    def forget_stale(self) -> None:
        """Delete the records of interfaces that have gone."""
        present = {interface.index for interface in self._tc.interfaces()}
        for entry in self._directory.glob("clsact-*"):
            name = _FILE_NAME.fullmatch(entry.name)
            if name is not None and int(name[1]) not in present:
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
                # It has no egress: the kernel would attach our filter to its ingress.
                raise KernelError(f"add clsact to {interface.name}, which has a qdisc ingress", errno.EEXIST) from error

    def _has_clsact(self, interface: Interface) -> bool:
        # A qdisc `ingress` has the same parent.
        qdiscs = self._tc.qdiscs().get(interface.index, [])
        return any(qdisc.kind == _CLSACT.kind and qdisc.parent == _CLSACT.parent for qdisc in qdiscs)

    def _ours(self, interface: Interface) -> list[Filter]:
        return self._filters(interface)[0]

    def _filters(self, interface: Interface) -> tuple[list[Filter], list[Filter]]:
        """Ours and those of others, at the egress."""
        filters = self._tc.filters(interface, _EGRESS)
        return [one for one in filters if _is_ours(one)], [one for one in filters if not _is_ours(one)]

    def _filters_of_others(self, interface: Interface) -> list[Filter]:
        return [*self._tc.filters(interface, _EGRESS), *self._tc.filters(interface, _INGRESS)]

    def _record(self, interface: Interface) -> Path:
        return self._directory / f"clsact-{interface.index}"


def _is_ours(filter_: Filter) -> bool:
    found = filter_.kind, filter_.handle, filter_.info & 0xFFFF
    if found != ("bpf", _HANDLE, _ALL_PROTOCOLS) or filter_.options is None:
        return False
    return text(attributes(filter_.options, only={_TCA_BPF_NAME}).get(_TCA_BPF_NAME, b"\0")) == _NAME


def _priority_of(filter_: Filter) -> int:
    return filter_.info >> 16


def _priority_before(others: Iterable[Filter]) -> int:
    """One before all of these, if possible: a filter that decides hides the packet from those behind it."""
    first = min(map(_priority_of, others), default=_PRIORITY + 1)
    return min(_PRIORITY, first - 1) or _PRIORITY
