"""The root qdisc of the proxy's interface: its own FIFO, or our HTB."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from pyroute2.netlink.rtnl import TC_H_ROOT

from mptcp_throttle.units import Rate
from mptcp_throttled.kernel import htb
from mptcp_throttled.kernel.netlink import HtbClass, Qdisc, TrafficControl, all_root_qdiscs
from mptcp_throttled.kernel.original import OriginalQdisc, can_be_put_back
from mptcp_throttled.kernel_state import HtbState, KernelError

if TYPE_CHECKING:
    from pathlib import Path

    from mptcp_throttled.kernel.htb import Marking

_log = logging.getLogger("mptcp-throttled")


class RootQdisc:
    """Swaps the root qdisc and manages our classes below it. All methods raise KernelError."""

    def __init__(self, interface: str, marking: Marking, state_directory: Path) -> None:
        self._interface = interface
        self._marking = marking
        self._tc = TrafficControl(interface)
        self._original = OriginalQdisc(state_directory, interface)

    def read(self) -> HtbState | None:
        """Our HTB, or None if the root qdisc is another."""
        qdiscs = self._tc.qdiscs()
        root = _root(qdiscs)
        if root is None or not _is_ours(root):
            return None
        leaves = {qdisc.parent for qdisc in qdiscs if qdisc.kind == "pfifo"}
        return HtbState(
            htb.default_minor_of(root),
            any(htb.is_mark_filter(found, self._marking) for found in self._tc.filters(htb.HANDLE)),
            {c.classid & 0xFFFF: _rate(c) if c.classid in leaves else None for c in self._tc.htb_classes()},
        )

    def install(self, default_minor: int) -> None:
        """Record the root qdisc and replace it by HTB with its filter; undone if the filter is refused."""
        root = _root(self._tc.qdiscs())
        if root is not None and not (can_be_put_back(root) and not self._tc.filters(root.handle)):
            raise KernelError(
                f"{self._interface}: root qdisc {root.kind} {root.handle >> 16:x}: cannot be put back as it is;"
                " remove it, or replace it by pfifo or fq_codel without size table or filters",
                errno.EEXIST,
            )
        try:
            self._original.record(root or Qdisc("noqueue", 0, TC_H_ROOT, None))
        except OSError as error:
            raise KernelError("record the root qdisc", error.errno or errno.EIO) from error
        self._tc.add_qdisc(htb.root_qdisc(default_minor), replace=True)
        try:
            self._tc.add_filter(htb.HANDLE, htb.mark_filter(self._marking))
        except KernelError:
            self.restore()
            raise

    def restore(self) -> None:
        """Put the recorded root qdisc back; without a record, the kernel's default."""
        original = self._original.load()
        if original is None:
            _log.warning(
                "%s: no record of the original root qdisc: the kernel's default takes its place",
                self._interface,
            )
        if original is None or original.handle == 0:
            self._tc.delete_root()
        else:
            self._tc.add_qdisc(original, replace=True)
        now = _root(self._tc.qdiscs())
        if original is not None and now != original:
            _log.warning("%s: root qdisc was %s, is now %s", self._interface, original, now)
        self._original.forget()

    def add_class(self, minor: int, rate: Rate) -> None:
        """Add a class and its leaf queue, or neither."""
        self._put_class(minor, rate, change=False)
        try:
            self._tc.add_qdisc(htb.leaf_qdisc(minor))
        except KernelError:
            self._tc.delete_class(htb.classid(minor))
            raise

    def change_class(self, minor: int, rate: Rate) -> None:
        """Give a class another rate; a missing leaf queue is added."""
        self._put_class(minor, rate, change=True)
        if not any(qdisc.parent == htb.classid(minor) for qdisc in self._tc.qdiscs()):
            self._tc.add_qdisc(htb.leaf_qdisc(minor))

    def delete_class(self, minor: int) -> None:
        """Delete a class."""
        self._tc.delete_class(htb.classid(minor))

    def require_htb(self) -> None:
        """Raise KernelError with ENOENT if the kernel has no HTB, ENODEV if there is no such interface."""
        if not self._tc.knows_qdisc("htb"):
            raise KernelError("the kernel has no HTB (CONFIG_NET_SCH_HTB)", errno.ENOENT)

    def _put_class(self, minor: int, rate: Rate, *, change: bool) -> None:
        self._tc.put_htb_class(htb.classid(minor), rate, htb.burst_bytes(rate), htb.quantum_bytes(rate), change=change)


def interfaces_under_our_htb() -> list[str]:
    """The names of all interfaces whose root qdisc is ours. Raises KernelError."""
    return [interface for interface, qdisc in all_root_qdiscs() if _is_ours(qdisc)]


def _root(qdiscs: list[Qdisc]) -> Qdisc | None:
    return next((qdisc for qdisc in qdiscs if qdisc.parent == TC_H_ROOT), None)


def _is_ours(root: Qdisc) -> bool:
    return root.kind == "htb" and root.handle == htb.HANDLE


def _rate(found: HtbClass) -> Rate | None:
    try:
        return Rate(found.rate * 8) if found.rate == found.ceil else None
    except ValueError:
        return None
