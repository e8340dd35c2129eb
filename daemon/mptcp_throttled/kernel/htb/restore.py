"""Saves an interface's root qdisc before HTB replaces it, and restores it, also after an interruption."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from pyroute2.netlink.rtnl import TC_H_ROOT

from mptcp_throttle.linux.kernel_error import KernelError, fault_point, os_errors
from mptcp_throttled.kernel.htb.saved import SavedQdiscs, SavedQdiscStore, differences, request_for, tree_of
from mptcp_throttled.kernel.interfaces import Interface, all_interfaces, exists
from mptcp_throttled.kernel.tc import Qdisc, TrafficControl
from mptcp_throttled.vocabulary.class_ids import HANDLE

_log = logging.getLogger("mptcp-throttled")

_OWN: Final = Qdisc("htb", HANDLE, TC_H_ROOT, options=None)
"""Names our HTB; the kernel refuses to delete another qdisc by it."""


class QdiscDump(NamedTuple):
    """All interfaces, and their qdiscs by interface index."""

    interfaces: Sequence[Interface]
    qdiscs: Mapping[int, Sequence[Qdisc]]

    def of(self, interface: Interface) -> Sequence[Qdisc]:
        """The qdiscs of an interface."""
        return self.qdiscs.get(interface.index, ())

    def has_htb(self, interface: Interface) -> bool:
        """Whether our HTB is the root qdisc of an interface."""
        return any((q.kind, q.handle, q.parent) == _OWN[:3] for q in self.of(interface))


class QdiscRestore:
    """The saved qdiscs of all interfaces. All methods raise KernelError.

    With `force`, a restore that the kernel refuses ends with the kernel's default qdisc instead of an error.
    """

    def __init__(self, tc: TrafficControl, run_directory: Path, *, force: bool) -> None:
        self._tc = tc
        self._force = force
        self._store = SavedQdiscStore(run_directory)

    def dump(self) -> QdiscDump:
        """What tc shows now; deletes the records of interfaces that no longer exist, whose index may be reused."""
        dump = QdiscDump(all_interfaces(), self._tc.qdiscs())
        for index in set(self._store.indices()) - {interface.index for interface in dump.interfaces}:
            # A dump can miss an interface while another is added and removed.
            if not exists(index):
                self._store.forget(index)
        return dump

    def is_pending(self, dump: QdiscDump, interface: Interface) -> bool:
        """Whether a restore was interrupted, or is due because another program has deleted our HTB."""
        saved = self._load(interface)
        if saved is None:
            return False
        # Without a configured root qdisc, our HTB has been deleted.
        return saved.restoring or (bool(saved.qdiscs) and not tree_of(dump.of(interface)))

    def save(self, interface: Interface, dump: QdiscDump) -> None:
        """Record the root qdisc of an interface with all below it."""
        self._write(interface, SavedQdiscs(tree_of(dump.of(interface))))

    def withdraw_restore(self, interface: Interface) -> None:
        """Note that our HTB is in place again, although a restore had begun."""
        saved = self._load(interface)
        if saved is not None and saved.restoring:
            self._write(interface, replace(saved, restoring=False))

    def forget(self, interface: Interface) -> None:
        """Delete the record of an interface."""
        self._store.forget(interface.index)

    def forget_stale(self) -> None:
        """Delete the records of interfaces that neither have our HTB nor a restore pending."""
        dump = self.dump()
        kept = {i.index for i in dump.interfaces if dump.has_htb(i) or self.is_pending(dump, i)}
        for index in self._store.indices():
            if index not in kept:
                self._store.forget(index)

    def restore(self, interface: Interface) -> None:
        """Put the saved qdiscs back in place of our HTB; without a record, the kernel's default."""
        saved = self._load(interface)
        if saved is None:
            _log.warning("%s: no record of the saved qdisc: restoring the kernel's default", interface.name)
        if saved is None or not saved.qdiscs:
            self._tc.delete_qdisc(interface, _OWN)
        else:
            # If the process dies between adding the root and adding its children, the next start resumes the restore.
            try:
                self._write(interface, replace(saved, restoring=True))
            except KernelError as error:
                _log.warning("%s", error)
            self._replay(interface, saved.qdiscs)
        self._store.forget(interface.index)

    def _replay(self, interface: Interface, qdiscs: Sequence[Qdisc]) -> None:
        # Qdiscs that an interrupted restore has already added stay: not every kind accepts a change.
        present = self.dump().of(interface)
        try:
            for qdisc in qdiscs:
                if qdisc not in present:
                    self._tc.add_qdisc(interface, request_for(qdisc), replace=True)
        except KernelError as error:
            if not self._force:
                raise
            _log.warning(
                "%s: %s: restoring the kernel's default, as daemon.replace_any_qdisc permits", interface.name, error
            )
            if self.dump().has_htb(interface):
                self._tc.delete_qdisc(interface, _OWN)
            return
        difference = differences(qdiscs, tree_of(self.dump().of(interface)))
        if difference:
            _log.warning("%s: restored qdiscs differ from the saved ones: %s", interface.name, difference)

    def _write(self, interface: Interface, saved: SavedQdiscs) -> None:
        what = f"record the root qdisc of {interface.name}"
        with os_errors(what):
            fault_point(what)
            self._store.write(interface.index, saved)

    def _load(self, interface: Interface) -> SavedQdiscs | None:
        with os_errors(f"read the record of {interface.name}"):
            return self._store.load(interface.index)
