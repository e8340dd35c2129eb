"""The kernel layer behind one class, for the reconciler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from mptcp_throttle.linux.inet_diag import ANY_PORT
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import FourTuple
from mptcp_throttled.kernel.classes.choice import ClassifierChoice
from mptcp_throttled.kernel.sockets.pacing import PacedSockets
from mptcp_throttled.kernel.sockets.proxy_sockets import SocketReader
from mptcp_throttled.vocabulary import operations as op
from mptcp_throttled.vocabulary.kernel_state import KernelState, PacingState, QdiscState, QuickCheck
from mptcp_throttled.vocabulary.traffic import ClosedSubflow

_NO_PACING: Final = "daemon.pacing is false"


class Htb(Protocol):
    """HTB of the interface towards the clients, with the classes. All methods raise KernelError."""

    @property
    def ports(self) -> frozenset[int]:
        """The netlink ports (nlmsg_pid) of our requests."""

    def require_htb(self) -> None:
        """Raise KernelError if there can be no HTB."""

    def read(self) -> QdiscState:
        """Our HTB, or why it cannot be installed; and the interfaces for which a restore is pending."""

    def install(self, default_minor: int) -> None:
        """Make HTB the root qdisc."""

    def restore(self, name: str | None = None) -> None:
        """Put back what was there on an interface (default: the proxy's)."""

    def fail_open(self) -> None:
        """Restore wherever our HTB is the root."""

    def forget_stale(self) -> None:
        """Delete records of what we have not replaced."""

    def change_classes(self, operations: Sequence[op.ClassOperation]) -> list[KernelError | None]:
        """Apply the operations in order; for each, why it was refused."""

    def class_bytes(self) -> Mapping[int, int]:
        """The bytes that each class has sent, or has in its queue, by minor. May be called by any thread."""


class LinuxKernel:
    """HTB, assignments and socket paces of this host, and the discard-prevention programs.

    For one thread only, but for `class_bytes`: pyroute2 sockets and libiptc handles must not be shared between threads.
    """

    def __init__(
        self,
        htb: Htb,
        assignments: ClassifierChoice,
        sockets: PacedSockets | None = None,
    ) -> None:
        self._htb = htb
        self._marks = assignments
        self._sockets = sockets

    @property
    def classifier(self) -> str:
        """The kind of the classifier in use: `socket`, `nft`, `rules` or `ovs`."""
        return self._marks.present.kind

    @property
    def ports(self) -> frozenset[int]:
        """The netlink ports (nlmsg_pid) of our tc requests; notifications of our own changes carry them."""
        return self._htb.ports

    def check(self) -> None:
        """Raise KernelError if HTB or what the classifier needs is missing."""
        self._htb.require_htb()
        self._marks.require()

    def read(self) -> KernelState:
        """The observed state. Raises KernelError."""
        pacing = self._pacing()  # first: it may attach the program, and so change the classifier
        return KernelState(self._htb.read(), self._marks.present.read(), pacing)

    def quick_check(self) -> QuickCheck:
        """Count what the kernel does not notify us of: assignments and paces. Raises KernelError."""
        pacing = self._pacing()
        return QuickCheck(self._marks.present.count(), pacing)

    def _pacing(self) -> PacingState:
        return PacingState(None, _NO_PACING) if self._sockets is None else self._sockets.read()

    def closed_subflows(self) -> Iterable[ClosedSubflow]:
        """The subflows that have closed since the last call, as far as a kernel program has counted them.

        Raises KernelError.
        """
        return () if self._sockets is None else self._sockets.closed_subflows()

    def adopt(self) -> dict[FourTuple, int]:
        """Adopt what an earlier instance has left in the kernel; returns its class assignments. Raises KernelError."""
        sockets = SocketReader((ANY_PORT,)).read()  # the proxy may have opened subflows itself
        classes = {ends: state.minor for ends, state in sockets.items() if state.minor}
        found = self._marks.present.read().values()
        assignments = {**classes, **{ends: minor for of in found for ends, minor in of.assignments.items()}}
        self._marks.adopt(classes)
        if self._sockets is not None:
            # The proxy may pace its sockets, too: only those that are assigned have their pace from us.
            paces = {
                ends: state.pace for ends, state in sockets.items() if ends in assignments and state.pace is not None
            }
            self._sockets.adopt_paces(paces)
        return assignments

    def release_sockets(self) -> int:
        """Wait until sockets have lost their removed paces; the number that still have one. Raises KernelError."""
        return 0 if self._sockets is None else self._sockets.free_sockets()

    def fail_open(self) -> None:
        """Restore the saved qdisc wherever our HTB is the root, whatever assignments remain. Raises KernelError."""
        if self._sockets is not None:
            self._sockets.close()
        self._htb.fail_open()

    def forget_stale(self) -> None:
        """Delete records of saved qdiscs that we have not replaced. Raises KernelError."""
        self._htb.forget_stale()

    def class_bytes(self) -> Mapping[int, int]:
        """The bytes that each class has sent, or has in its queue, by minor. May be called by any thread."""
        return self._htb.class_bytes()

    def change_classes(self, operations: Sequence[op.ClassOperation]) -> list[KernelError | None]:
        """Apply the operations in order; for each, why it was refused."""
        return self._htb.change_classes(operations)

    def apply(self, operation: op.OtherOperation) -> None:
        """Apply one operation. Raises KernelError."""
        match operation:
            case op.InstallHtb(default_minor):
                self._htb.install(default_minor)
            case op.MakeAssignments(ip_version, assignments):
                self._marks.present.make(ip_version, assignments)
            case op.ChangeAssignments(ip_version, add, remove):
                self._marks.present.change(ip_version, add, remove)
            case op.ChangePaces(add, remove) if self._sockets is not None:
                self._sockets.change(add, remove)
            case op.RemoveAssignments(ip_version):
                self._marks.present.remove(ip_version)
            case op.RestoreQdisc(interface):
                self._htb.restore(interface)
