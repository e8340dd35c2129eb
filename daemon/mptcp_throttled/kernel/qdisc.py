"""The root qdisc of the proxy's interface: its own, or our HTB."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from socket import if_indextoname, if_nametoindex
from typing import TYPE_CHECKING, NamedTuple

from pyroute2.netlink.rtnl import TC_H_ROOT

from mptcp_throttle.linux.fault_point import fault_point, os_errors
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttled.kernel import htb
from mptcp_throttled.kernel.saved_qdisc import SavedQdiscs, SavedQdiscStore, tree_of, what_cannot_be_put_back
from mptcp_throttled.kernel.tc import (
    Interface,
    Qdisc,
    TrafficControl,
    add_class,
    add_qdisc,
    delete_class,
    format_handle,
)
from mptcp_throttled.reconcile.kernel_state import HtbState, QdiscState
from mptcp_throttled.reconcile.operations import AddClass, ChangeClass, ClassOperation, DeleteClass

if TYPE_CHECKING:
    from pathlib import Path

    from mptcp_throttle.linux.netlink_socket import Request
    from mptcp_throttled.kernel.htb import Marking

_log = logging.getLogger("mptcp-throttled")


class _Dump(NamedTuple):
    """All interfaces, and their qdiscs by interface index."""

    interfaces: list[Interface]
    qdiscs: Mapping[int, Sequence[Qdisc]]

    def of(self, interface: Interface) -> Sequence[Qdisc]:
        return self.qdiscs.get(interface.index, ())


class RootQdisc:
    """Swaps the root qdisc and manages our classes below it. All methods raise KernelError.

    The interface is looked up by name at each use: interfaces come and go, and are renamed. With `force`, a qdisc that
    cannot be put back as it is does not keep us from replacing it.
    """

    def __init__(self, interface: str, marking: Marking, run_directory: Path, *, force: bool = False) -> None:
        self._interface = interface
        self._marking = marking
        self._force = force
        self._tc = TrafficControl()
        self._records = SavedQdiscStore(run_directory)

    @property
    def ports(self) -> frozenset[int]:
        """The netlink ports of our requests."""
        return self._tc.ports

    def read(self) -> QdiscState:
        """Our HTB, or why it cannot be put in; and the interfaces on which we have left anything."""
        dump = self._dump()
        ours = next((interface for interface in dump.interfaces if interface.name == self._interface), None)
        if ours is None:
            return QdiscState(
                None, f"interface {self._interface} does not exist", False, self._pending_elsewhere(dump, None)
            )
        pending_elsewhere = self._pending_elsewhere(dump, ours)
        if not _is_under_ours(dump.of(ours)):
            restore_pending = self._is_owed_its_own(dump, ours)
            return QdiscState(None, self._obstacle(ours, dump.of(ours)), restore_pending, pending_elsewhere)
        return QdiscState(self._read_htb(ours, dump.of(ours)), None, False, pending_elsewhere)

    def forget_stale(self) -> None:
        """Remove the records of interfaces on which we have left nothing: what they have now is their own."""
        dump = self._dump()
        kept = {
            interface.index
            for interface in dump.interfaces
            if _is_under_ours(dump.of(interface)) or self._is_owed_its_own(dump, interface)
        }
        for index in self._records.indices():
            if index not in kept:
                self._records.forget(index)

    def install(self, default_minor: int) -> None:
        """Record the root qdisc and replace it by HTB with its filter; undone if the filter is refused."""
        interface = self._own_interface()
        dump = self._dump()
        obstacle = self._obstacle(interface, dump.of(interface))
        if obstacle is not None:
            raise KernelError(obstacle, errno.EEXIST)
        restore_pending = self._is_owed_its_own(dump, interface)  # then what could not be put back stays on record
        if not restore_pending:
            self._record(interface, SavedQdiscs(tree_of(dump.of(interface))))
        try:
            self._tc.add_qdisc(interface, htb.root_qdisc(default_minor), replace=True)
        except KernelError:
            if not restore_pending:
                self._records.forget(interface.index)
            raise
        try:
            if restore_pending and (original := self._load(interface)) is not None and original.restoring:
                self._record(interface, replace(original, restoring=False))
            self._tc.add_filter(interface, htb.HANDLE, htb.mark_filter(self._marking))
        except KernelError:
            self.restore()
            raise

    def restore(self, name: str | None = None) -> None:
        """Put the recorded qdiscs of an interface (or of ours) back; without a record, the kernel's default."""
        interface = self._interface_of(name or self._interface)
        original = self._load(interface)
        if original is None:
            _log.warning("%s: no record of its own root qdisc: the kernel's default takes its place", interface.name)
        if original is None or not original.qdiscs:
            self._tc.delete_root(interface)
        else:
            # If the process ends between the root and what hangs from it, the next one must know.
            try:
                self._record(interface, replace(original, restoring=True))
            except KernelError as error:
                _log.warning("%s", error)
            self._replay(interface, original.qdiscs)
        self._records.forget(interface.index)

    def fail_open(self) -> None:
        """Restore wherever our HTB is the root qdisc; where that fails, no mark leads to a class any more.

        The latter takes a single message, and no look at what there is: the handle is nobody else's.
        """
        try:
            dump = self._dump()
            for interface in dump.interfaces:
                if _is_under_ours(dump.of(interface)):
                    self.restore(interface.name)
        except KernelError:
            with suppress(OSError, KernelError):
                self._tc.delete_filters(Interface(if_nametoindex(self._interface), self._interface), htb.HANDLE)
            raise

    def change_classes(self, operations: Sequence[ClassOperation]) -> list[KernelError | None]:
        """Add, change and delete classes, in order; for each, why it was refused.

        A class comes with its leaf queue, or not at all. When one is mended, its leaf is replaced.
        """
        try:
            interface = self._own_interface()
        except KernelError as error:
            return [error] * len(operations)
        requests = [tuple(_requests(operation, interface)) for operation in operations]
        answers = iter(self._tc.carry_out([request for of in requests for request in of]))
        refusals, without_leaf = [], []
        for operation, of in zip(operations, requests, strict=True):
            first, *rest = (next(answers) for _ in of)
            refusals.append(first or next(filter(None, rest), None))
            if isinstance(operation, AddClass) and first is None and any(rest):
                without_leaf.append(delete_class(interface, htb.classid(operation.minor)))
        self._tc.carry_out(without_leaf)
        return refusals

    def require_htb(self) -> None:
        """Raise KernelError with ENOENT if the kernel has no HTB, ENODEV if there is no such interface."""
        if not self._tc.knows_qdisc(self._own_interface(), "htb"):
            raise KernelError("the kernel has no HTB (CONFIG_NET_SCH_HTB)", errno.ENOENT)

    def _dump(self) -> _Dump:
        dump = _Dump(self._tc.interfaces(), self._tc.qdiscs())
        # An interface that has gone is restore_pending nothing, and another may get its index.
        for index in set(self._records.indices()) - {interface.index for interface in dump.interfaces}:
            if not _exists(index):  # others that come and go may hide one from a listing
                self._records.forget(index)
        return dump

    def _own_interface(self) -> Interface:
        return self._interface_of(self._interface)

    def _interface_of(self, name: str) -> Interface:
        try:
            return Interface(if_nametoindex(name), name)
        except OSError as error:
            raise KernelError(f"interface {name} does not exist", errno.ENODEV) from error

    def _read_htb(self, interface: Interface, qdiscs: Sequence[Qdisc]) -> HtbState:
        root = next(qdisc for qdisc in qdiscs if qdisc.parent == TC_H_ROOT)
        leaves = {qdisc.parent for qdisc in qdiscs if htb.is_leaf(qdisc)}
        return HtbState(
            htb.default_minor_of(root),
            any(htb.is_mark_filter(found, self._marking) for found in self._tc.filters(interface, htb.HANDLE)),
            {
                c.classid & 0xFFFF: htb.rate_of(c.options) if c.classid in leaves else None
                for c in self._tc.htb_classes(interface)
            },
        )

    def _obstacle(self, interface: Interface, qdiscs: Sequence[Qdisc]) -> str | None:
        if self._force:
            return None
        tree = tree_of(qdiscs)
        problem = what_cannot_be_put_back(tree)
        filtered = next((q for q in tree if problem is None and self._tc.filters(interface, q.handle)), None)
        if filtered is not None:
            problem = f"qdisc {filtered.kind} {format_handle(filtered.handle)} has filters"
        if problem is None:
            return None
        return (
            f"{interface.name}: root {problem} that cannot be put back as it is; remove it, replace it by fq_codel or"
            " pfifo, or set daemon.replace_any_qdisc"
        )

    def _pending_elsewhere(self, dump: _Dump, own: Interface | None) -> tuple[str, ...]:
        return tuple(
            interface.name
            for interface in dump.interfaces
            if interface != own and (_is_under_ours(dump.of(interface)) or self._is_owed_its_own(dump, interface))
        )

    def _is_owed_its_own(self, dump: _Dump, interface: Interface) -> bool:
        original = self._load(interface)
        if original is None:
            return False
        # With no configured root, somebody has deleted ours.
        return original.restoring or (bool(original.qdiscs) and not tree_of(dump.of(interface)))

    def _replay(self, interface: Interface, qdiscs: Sequence[Qdisc]) -> None:
        # What is there already, from a restoring that was broken off, stays: not every kind can be changed.
        present = self._dump().of(interface)
        try:
            for qdisc in qdiscs:
                if qdisc not in present:
                    self._tc.add_qdisc(interface, qdisc, replace=True)
        except KernelError as error:
            if not self._force:
                raise
            _log.warning("%s: %s; what was replaced by force is not put back as it was", interface.name, error)
            if _is_under_ours(self._dump().of(interface)):
                self._tc.delete_root(interface)
            return
        now = tree_of(self._dump().of(interface))
        if now != tuple(qdiscs):
            _log.warning("%s: qdiscs were %s, are now %s", interface.name, qdiscs, now)

    def _record(self, interface: Interface, original: SavedQdiscs) -> None:
        what = f"record the root qdisc of {interface.name}"
        with os_errors(what):
            fault_point(what)
            self._records.write(interface.index, original)

    def _load(self, interface: Interface) -> SavedQdiscs | None:
        with os_errors(f"read the record of {interface.name}"):
            return self._records.load(interface.index)


def _requests(operation: ClassOperation, interface: Interface) -> Iterator[Request]:
    classid, leaf = htb.classid(operation.minor), htb.leaf_qdisc(operation.minor)
    match operation:
        case AddClass(rate=rate):
            yield add_class(interface, classid, htb.class_options(rate), rate)
            yield add_qdisc(interface, leaf)
        case ChangeClass(rate=rate, mend=mend):
            yield add_class(interface, classid, htb.class_options(rate), rate, change=True)
            if mend:
                yield add_qdisc(interface, leaf, replace=True)
        case DeleteClass():
            yield delete_class(interface, classid)


def _exists(index: int) -> bool:
    try:
        if_indextoname(index)
    except OSError:
        return False
    return True


def _is_under_ours(qdiscs: Sequence[Qdisc]) -> bool:
    return any(q.parent == TC_H_ROOT and q.kind == "htb" and q.handle == htb.HANDLE for q in qdiscs)
