"""The root qdiscs of the proxy's interfaces: the saved ones, or our HTB with the same classes on each of them.

Where all of them have qdiscs that must stay, classes are only noted if paces hold caps without them.
"""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from pyroute2.netlink.rtnl import TC_H_ROOT

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.netlink_socket import Request
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel import tc
from mptcp_throttled.kernel.htb import htb
from mptcp_throttled.kernel.htb.restore import QdiscDump, QdiscRestore
from mptcp_throttled.kernel.htb.saved import tree_of, why_not_restorable
from mptcp_throttled.kernel.interfaces import Interface, find_interface, none_exists, require_interfaces
from mptcp_throttled.vocabulary import class_ids
from mptcp_throttled.vocabulary.kernel_state import HtbState, QdiscState
from mptcp_throttled.vocabulary.operations import AddClass, ChangeClass, ClassOperation, DeleteClass

# LOOPBACK_IFINDEX in include/net/flow.h: every network namespace has it.
_LOOPBACK: Final = Interface(1, "lo")

_WITHOUT_QDISC: Final = (
    "no interface has HTB: paces and steering hold caps, which no qdisc guarantees, and limits are not enforced"
)

_RETRY_SECONDS: Final = 60.0
"""After which HTB is tried again on an interface that refuses it while another interface has it."""


class _Refusal(NamedTuple):
    """Why an interface has refused HTB, and until when (monotonic seconds) it is left out."""

    text: str
    until: float


class RootQdiscs:
    """Replaces and restores the root qdiscs, and changes the classes of our HTB. All methods raise KernelError.

    Each interface has a class of the whole rate of a share: a packet takes the class of the interface that it
    leaves through, and the paces of the sockets keep the sum to the rate. The interfaces are looked up by name at each
    use, because they appear, disappear and are renamed; those that do not exist are passed over. With `force`, a root
    qdisc is replaced even if it cannot be restored exactly. `needs_filter`: whether marks lead to the classes.
    `may_do_without`: whether caps are held without HTB, too.
    """

    def __init__(
        self,
        interfaces: tuple[str, ...],
        marking: class_ids.MarkedTraffic,
        run_directory: Path,
        *,
        needs_filter: Callable[[], bool] = lambda: True,
        may_do_without: Callable[[], bool] = lambda: False,
        force: bool = False,
    ) -> None:
        self._names = interfaces
        self._marking = marking
        self._needs_filter = needs_filter
        self._may_do_without = may_do_without
        self._force = force
        self._tc = tc.TrafficControl()
        self._saved = QdiscRestore(self._tc, run_directory, force=force)
        # The classes of each interface that has our HTB, by its index: as read last, and changed since then.
        self._classes: dict[int, dict[int, Rate | None]] = {}
        # Default class and classes that HTB would have; None while an interface can have it, and before `install`.
        self._noted: tuple[int, dict[int, Rate | None]] | None = None
        self._refusals: dict[int, _Refusal] = {}

    @property
    def ports(self) -> frozenset[int]:
        return self._tc.ports

    def read(self) -> QdiscState:
        dump = self._saved.dump()
        own = [interface for interface in dump.interfaces if interface.name in self._names]
        without = [interface for interface in own if not dump.has_htb(interface)]
        obstacles = [text for link in without if (text := self._why_without(link, dump.of(link))) is not None]
        states = {link.index: self._read_htb(link, dump.of(link)) for link in own if link not in without}
        self._classes = {index: dict(state.classes) for index, state in states.items()}
        is_usable = len(obstacles) < len(own)
        without_qdisc = bool(own) and not is_usable and self._may_do_without()
        if not without_qdisc:
            self._noted = None
        state = QdiscState(
            _common(list(states.values()), complete=len(without) == len(obstacles)),
            restore_pending=any(self._saved.is_pending(dump, interface) for interface in without),
            pending_elsewhere=tuple(
                interface.name
                for interface in dump.interfaces
                if interface not in own and (dump.has_htb(interface) or self._saved.is_pending(dump, interface))
            ),
        )
        if without_qdisc:
            noted = None if self._noted is None else HtbState(self._noted[0], True, dict(self._noted[1]))
            return replace(state, htb=noted, left_out=(*obstacles, _WITHOUT_QDISC), without_qdisc=True)
        if is_usable:
            return replace(state, left_out=tuple(obstacles))
        return replace(state, obstacle=next(iter(obstacles), none_exists(self._names)))

    def forget_stale(self) -> None:
        self._saved.forget_stale()

    def install(self, default_minor: int) -> None:
        """Install HTB, with its filter if needed, on each interface that has neither our HTB nor an obstacle.

        If the root qdisc of each must stay, and caps can do without, classes are only noted from now on.

        The root qdisc is saved first, and restored if the filter is refused. An interface that refuses HTB is left out
        for a minute, if another interface has it.
        """
        dump = self._saved.dump()
        missing = [interface for interface in require_interfaces(self._names) if not dump.has_htb(interface)]
        refusals, is_tried = [], False
        for interface in missing:
            obstacle = self._why_without(interface, dump.of(interface))
            if obstacle is not None:
                refusals.append(KernelError(obstacle, errno.EEXIST))
                continue
            is_tried = True
            try:
                self._install_on(interface, dump, default_minor)
            except KernelError as error:
                refusals.append(error)
                self._refusals[interface.index] = _Refusal(str(error), time.monotonic() + _RETRY_SECONDS)
        if refusals and not self._classes:
            if not is_tried and self._may_do_without():
                self._noted = default_minor, {}
                return
            self._refusals.clear()  # no subflow is throttled: all are tried again as often as any reconcile
            raise refusals[0]

    def _why_without(self, interface: Interface, qdiscs: Sequence[tc.Qdisc]) -> str | None:
        """Why HTB must not, or cannot, be installed on an interface; None if it may be tried."""
        refusal = self._refusals.get(interface.index)
        if refusal is not None and time.monotonic() < refusal.until:
            return f"{interface.name}: {refusal.text}"
        return self._obstacle(interface, qdiscs)

    def _install_on(self, interface: Interface, dump: QdiscDump, default_minor: int) -> None:
        restore_pending = self._saved.is_pending(dump, interface)  # then the existing record stays valid
        if not restore_pending:
            self._saved.save(interface, dump)
        # In place of its default the kernel adds HTB, but refuses if another qdisc has come since the dump.
        is_default = not tree_of(dump.of(interface))
        try:
            self._tc.add_qdisc(interface, htb.root_qdisc(default_minor), replace=not is_default)
        except KernelError:
            if not restore_pending:
                self._saved.forget(interface)
            raise
        try:
            if restore_pending:
                self._saved.withdraw_restore(interface)
            if self._needs_filter():
                self._tc.add_filter(interface, class_ids.HANDLE, htb.mark_filter(self._marking))
        except KernelError:
            self._restore(interface)
            raise
        self._classes[interface.index] = {}
        self._refusals.pop(interface.index, None)

    def restore(self, name: str | None = None) -> None:
        """Restore the saved qdisc of an interface, or the kernel's default if none is saved.

        Without a name, of each interface of the proxy that has our HTB or a restore pending.
        """
        if name is not None:
            self._restore(find_interface(name))
            return
        self._noted = None
        dump = self._saved.dump()
        own = require_interfaces(self._names)
        self._restore_all([link for link in own if dump.has_htb(link) or self._saved.is_pending(dump, link)])

    def fail_open(self) -> None:
        """Restore every interface whose root is our HTB; if that fails, delete the filters that lead to the classes.

        Deleting a filter takes one message and reads nothing first: no other program uses our handle.
        """
        self._noted = None
        try:
            dump = self._saved.dump()
            self._restore_all([interface for interface in dump.interfaces if dump.has_htb(interface)])
        except KernelError:
            with suppress(KernelError):
                for interface in require_interfaces(self._names):
                    with suppress(KernelError):
                        self._tc.delete_filters(interface, class_ids.HANDLE)
            raise

    def _restore_all(self, interfaces: Iterable[Interface]) -> None:
        refusals = []
        for interface in interfaces:
            try:
                self._restore(interface)
            except KernelError as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]

    def _restore(self, interface: Interface) -> None:
        self._saved.restore(interface)
        self._classes.pop(interface.index, None)

    def change_classes(self, operations: Sequence[ClassOperation]) -> list[KernelError | None]:
        """Add, change and delete classes, in order and in one batch; for each operation, why it was refused.

        A class that one of the interfaces or its leaf qdisc refuses is deleted again on all of them. To repair a class
        replaces its leaf. An interface that has come since the last reading gets its classes by a full reconcile.
        """
        if self._noted is not None:
            for operation in operations:
                _note(self._noted[1], operation)
            return [None] * len(operations)
        try:
            own = require_interfaces(self._names)
        except KernelError as error:
            return [error] * len(operations)
        interfaces = [interface for interface in own if interface.index in self._classes] or own
        requests = [[tuple(self._requests(operation, link)) for link in interfaces] for operation in operations]
        answers = iter(self._tc.carry_out(list(chain.from_iterable(chain.from_iterable(requests)))))
        refusals, partly_added = [], []
        for operation, by_interface in zip(operations, requests, strict=True):
            results = [[next(answers) for _ in sent] for sent in by_interface]
            refusal = _refusal(results)
            refusals.append(refusal)
            if refusal is None:
                for interface in interfaces:
                    _note(self._classes.setdefault(interface.index, {}), operation)
            elif isinstance(operation, AddClass):
                added = (link for link, result in zip(interfaces, results, strict=True) if result and result[0] is None)
                partly_added += [tc.delete_class(link, class_ids.classid(operation.minor)) for link in added]
        self._tc.carry_out(partly_added)
        return refusals

    def _requests(self, operation: ClassOperation, interface: Interface) -> Iterator[Request]:
        minor = operation.minor
        classid, leaf = class_ids.classid(minor), htb.leaf_qdisc(minor)
        classes = self._classes.get(interface.index, {})
        is_only_elsewhere = minor not in classes and any(minor in present for present in self._classes.values())
        match operation:
            case ChangeClass(rate=rate) if not is_only_elsewhere:
                yield tc.add_class(interface, classid, htb.class_options(rate), rate, change=True)
                if operation.replace_leaf and classes.get(minor) is None:
                    yield tc.add_qdisc(interface, leaf, replace=True)
            case AddClass(rate=rate) | ChangeClass(rate=rate):
                yield tc.add_class(interface, classid, htb.class_options(rate), rate)
                yield tc.add_qdisc(interface, leaf)
            case DeleteClass() if not is_only_elsewhere:
                yield tc.delete_class(interface, classid)

    def class_bytes(self) -> Mapping[int, int]:
        total: Counter[int] = Counter()
        for interface in require_interfaces(self._names):
            for id_, sent in tc.read_class_bytes(interface).items():
                minor = class_ids.minor_of(id_)
                if minor is not None:
                    total[minor] += sent
        return total

    def require_htb(self) -> None:
        # The proxy's interfaces may come later.
        if not self._tc.knows_qdisc(_LOOPBACK, "htb"):
            raise KernelError("the kernel has no HTB (CONFIG_NET_SCH_HTB)", errno.ENOENT)

    def _read_htb(self, interface: Interface, qdiscs: Sequence[tc.Qdisc]) -> HtbState:
        root = next(qdisc for qdisc in qdiscs if qdisc.parent == TC_H_ROOT)
        with_leaf = {qdisc.parent for qdisc in qdiscs if htb.is_leaf(qdisc)}
        return HtbState(
            htb.default_minor_of(root),
            self._classifies(self._tc.filters(interface, class_ids.HANDLE)),
            {
                minor: htb.rate_of(options) if classid in with_leaf else None
                for classid, options in self._tc.htb_classes(interface).items()
                if (minor := class_ids.minor_of(classid)) is not None
            },
        )

    def _classifies(self, filters: Iterable[tc.Filter]) -> bool:
        ours = (htb.is_mark_filter(filter_, self._marking) for filter_ in filters)
        return any(ours) == self._needs_filter()

    def _obstacle(self, interface: Interface, qdiscs: Sequence[tc.Qdisc]) -> str | None:
        """Why the root qdisc must not be replaced; None if it may be."""
        if self._force:
            return None
        tree = tree_of(qdiscs)
        problem = why_not_restorable(tree)
        filtered = next((q for q in tree if problem is None and self._tc.filters(interface, q.handle)), None)
        if filtered is not None:
            problem = f"qdisc {filtered.kind} {class_ids.format_handle(filtered.handle)} has filters"
        if problem is None:
            return None
        return (
            f"{interface.name}: root {problem} that cannot be restored exactly; remove it, replace it by fq_codel or"
            " pfifo, or set daemon.replace_any_qdisc"
        )


def _note(classes: dict[int, Rate | None], operation: ClassOperation) -> None:
    match operation:
        case AddClass(minor, rate) | ChangeClass(minor, rate):
            classes[minor] = rate
        case DeleteClass(minor):
            classes.pop(minor, None)


def _refusal(results: Iterable[Sequence[KernelError | None]]) -> KernelError | None:
    """The first refusal of the interfaces; one that has gone counts only if all have gone."""
    refusals = [next(filter(None, result), None) for result in results if result]
    present = [refusal for refusal in refusals if refusal is None or refusal.number != errno.ENODEV]
    return next(filter(None, present or refusals), None)


def _common(states: Sequence[HtbState], *, complete: bool) -> HtbState | None:
    """What the HTBs of all interfaces have in common; None if there is none."""
    if not states:
        return None
    first = states[0]
    if complete and len(states) == 1:
        return first
    classifies = all(state.classifies and state.default_minor == first.default_minor for state in states)
    classes: dict[int, Rate | None] = {}
    for minor in {minor for state in states for minor in state.classes}:
        rates = {state.classes.get(minor) for state in states}
        classes[minor] = rates.pop() if complete and len(rates) == 1 else None
    return HtbState(first.default_minor, classifies, classes, complete)
