"""Changes to the classes of our HTB, sent to the kernel as one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mptcp_throttled.kernel import htb
from mptcp_throttled.kernel.tc import add_class, add_leaf, delete_class
from mptcp_throttled.reconcile.operations import AddClass, ChangeClass, ClassOperation, DeleteClass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mptcp_throttle.linux.kernel_error import KernelError
    from mptcp_throttle.linux.netlink_requests import Request
    from mptcp_throttled.kernel.tc import Interface, TrafficControl


def change_classes(
    tc: TrafficControl, interface: Interface, operations: Sequence[ClassOperation]
) -> list[KernelError | None]:
    """Add, change and delete classes, in order; for each operation, why it was refused.

    A class whose leaf qdisc is refused is deleted again. To repair a class replaces its leaf.
    """
    requests = [tuple(_requests(operation, interface)) for operation in operations]
    answers = iter(tc.carry_out([request for of in requests for request in of]))
    refusals, without_leaf = [], []
    for operation, of in zip(operations, requests, strict=True):
        first, *rest = (next(answers) for _ in of)
        refusals.append(first or next(filter(None, rest), None))
        if isinstance(operation, AddClass) and first is None and any(rest):
            without_leaf.append(delete_class(interface, htb.classid(operation.minor)))
    tc.carry_out(without_leaf)
    return refusals


def _requests(operation: ClassOperation, interface: Interface) -> Iterator[Request]:
    classid, leaf = htb.classid(operation.minor), htb.leaf_qdisc(operation.minor)
    match operation:
        case AddClass(rate=rate):
            yield add_class(interface, classid, htb.class_options(rate), rate)
            yield add_leaf(interface, leaf)
        case ChangeClass(rate=rate, mend=mend):
            yield add_class(interface, classid, htb.class_options(rate), rate, change=True)
            if mend:
                yield add_leaf(interface, leaf, replace=True)
        case DeleteClass():
            yield delete_class(interface, classid)
