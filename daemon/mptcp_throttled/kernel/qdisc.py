"""The root qdisc of the proxy's interface: the saved qdisc, or our HTB with its classes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pyroute2.netlink.rtnl import TC_H_ROOT

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.netlink_socket import Request
from mptcp_throttled.kernel import htb, tc
from mptcp_throttled.kernel.qdisc_restore import QdiscRestore
from mptcp_throttled.kernel.saved_qdisc import tree_of, why_not_restorable
from mptcp_throttled.reconcile.kernel_state import HtbState, QdiscState
from mptcp_throttled.reconcile.operations import AddClass, ChangeClass, ClassOperation, DeleteClass

# LOOPBACK_IFINDEX in include/net/flow.h: every network namespace has it.
_LOOPBACK: Final = tc.Interface(1, "lo")


class RootQdisc:
    """Replaces and restores the root qdisc, and changes the classes of our HTB. All methods raise KernelError.

    The interface is looked up by name at each use, because interfaces appear, disappear and are renamed. With `force`,
    a root qdisc is replaced even if it cannot be restored exactly. `needs_filter`: whether marks lead to the classes.
    """

    def __init__(
        self,
        interface: str,
        marking: htb.MarkedTraffic,
        run_directory: Path,
        *,
        needs_filter: Callable[[], bool] = lambda: True,
        force: bool = False,
    ) -> None:
        self._interface = interface
        self._marking = marking
        self._needs_filter = needs_filter
        self._force = force
        self._tc = tc.TrafficControl()
        self._saved = QdiscRestore(self._tc, run_directory, force=force)

    @property
    def ports(self) -> frozenset[int]:
        """The netlink ports (nlmsg_pid) of our requests."""
        return self._tc.ports

    def read(self) -> QdiscState:
        """Our HTB, or why it cannot be installed; and the interfaces for which a restore is pending."""
        dump = self._saved.dump()
        own = next((interface for interface in dump.interfaces if interface.name == self._interface), None)
        pending_elsewhere = tuple(
            interface.name
            for interface in dump.interfaces
            if interface != own and (dump.has_htb(interface) or self._saved.is_pending(dump, interface))
        )
        if own is None:
            return QdiscState(None, f"interface {self._interface} does not exist", False, pending_elsewhere)
        if not dump.has_htb(own):
            restore_pending = self._saved.is_pending(dump, own)
            return QdiscState(None, self._obstacle(own, dump.of(own)), restore_pending, pending_elsewhere)
        return QdiscState(self._read_htb(own, dump.of(own)), None, False, pending_elsewhere)

    def forget_stale(self) -> None:
        """Delete the records of interfaces whose root qdisc we have not replaced."""
        self._saved.forget_stale()

    def install(self, default_minor: int) -> None:
        """Save the root qdisc and replace it by HTB, with its filter if needed; restore it if that is refused."""
        interface = self._own_interface()
        dump = self._saved.dump()
        obstacle = self._obstacle(interface, dump.of(interface))
        if obstacle is not None:
            raise KernelError(obstacle, errno.EEXIST)
        restore_pending = self._saved.is_pending(dump, interface)  # then the existing record stays valid
        if not restore_pending:
            self._saved.save(interface, dump)
        try:
            self._tc.add_qdisc(interface, htb.root_qdisc(default_minor), replace=True)
        except KernelError:
            if not restore_pending:
                self._saved.forget(interface)
            raise
        try:
            if restore_pending:
                self._saved.withdraw_restore(interface)
            if self._needs_filter():
                self._tc.add_filter(interface, htb.HANDLE, htb.mark_filter(self._marking))
        except KernelError:
            self.restore()
            raise

    def restore(self, name: str | None = None) -> None:
        """Restore the saved qdisc of an interface (default: the proxy's), or the kernel's default if none is saved."""
        self._saved.restore(tc.find_interface(name or self._interface))

    def fail_open(self) -> None:
        """Restore every interface whose root is our HTB; if that fails, delete the filter that leads to the classes.

        Deleting the filter takes one message and reads nothing first: no other program uses our handle.
        """
        try:
            dump = self._saved.dump()
            for interface in dump.interfaces:
                if dump.has_htb(interface):
                    self.restore(interface.name)
        except KernelError:
            with suppress(KernelError):
                self._tc.delete_filters(self._own_interface(), htb.HANDLE)
            raise

    def change_classes(self, operations: Sequence[ClassOperation]) -> list[KernelError | None]:
        """Add, change and delete classes, in order and in one batch; for each operation, why it was refused.

        A class whose leaf qdisc is refused is deleted again. To repair a class replaces its leaf.
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
                without_leaf.append(tc.delete_class(interface, htb.classid(operation.minor)))
        self._tc.carry_out(without_leaf)
        return refusals

    def class_bytes(self) -> dict[int, int]:
        """The bytes that each class has sent, or has in its queue, by minor. May be called by any thread."""
        found = tc.read_class_bytes(self._interface)
        return {minor: sent for id_, sent in found.items() if (minor := htb.minor_of(id_)) is not None}

    def require_htb(self) -> None:
        """Raise KernelError with ENOENT if the kernel has no HTB."""
        # The proxy's interface may come later.
        if not self._tc.knows_qdisc(_LOOPBACK, "htb"):
            raise KernelError("the kernel has no HTB (CONFIG_NET_SCH_HTB)", errno.ENOENT)

    def _own_interface(self) -> tc.Interface:
        return tc.find_interface(self._interface)

    def _read_htb(self, interface: tc.Interface, qdiscs: Sequence[tc.Qdisc]) -> HtbState:
        root = next(qdisc for qdisc in qdiscs if qdisc.parent == TC_H_ROOT)
        with_leaf = {qdisc.parent for qdisc in qdiscs if htb.is_leaf(qdisc)}
        return HtbState(
            htb.default_minor_of(root),
            self._classifies(self._tc.filters(interface, htb.HANDLE)),
            {
                minor: htb.rate_of(c.options) if c.classid in with_leaf else None
                for c in self._tc.htb_classes(interface)
                if (minor := htb.minor_of(c.classid)) is not None
            },
        )

    def _classifies(self, filters: Iterable[tc.Filter]) -> bool:
        ours = (htb.is_mark_filter(found, self._marking) for found in filters)
        return any(ours) == self._needs_filter()

    def _obstacle(self, interface: tc.Interface, qdiscs: Sequence[tc.Qdisc]) -> str | None:
        """Why the root qdisc must not be replaced; None if it may be."""
        if self._force:
            return None
        tree = tree_of(qdiscs)
        problem = why_not_restorable(tree)
        filtered = next((q for q in tree if problem is None and self._tc.filters(interface, q.handle)), None)
        if filtered is not None:
            problem = f"qdisc {filtered.kind} {tc.format_handle(filtered.handle)} has filters"
        if problem is None:
            return None
        return (
            f"{interface.name}: root {problem} that cannot be restored exactly; remove it, replace it by fq_codel or"
            " pfifo, or set daemon.replace_any_qdisc"
        )


def _requests(operation: ClassOperation, interface: tc.Interface) -> Iterator[Request]:
    classid, leaf = htb.classid(operation.minor), htb.leaf_qdisc(operation.minor)
    match operation:
        case AddClass(rate=rate):
            yield tc.add_class(interface, classid, htb.class_options(rate), rate)
            yield tc.add_qdisc(interface, leaf)
        case ChangeClass(rate=rate, replace_leaf=replace_leaf):
            yield tc.add_class(interface, classid, htb.class_options(rate), rate, change=True)
            if replace_leaf:
                yield tc.add_qdisc(interface, leaf, replace=True)
        case DeleteClass():
            yield tc.delete_class(interface, classid)
