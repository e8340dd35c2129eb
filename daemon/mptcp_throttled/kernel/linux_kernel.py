"""The kernel layer behind one class, for the reconciler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import Ailment, FourTuple
from mptcp_throttle.ports import ALL_PORTS
from mptcp_throttled.kernel.classes.choice import ClassifierChoice
from mptcp_throttled.kernel.sockets.pacing import PacedSockets
from mptcp_throttled.kernel.sockets.proxy_sockets import SocketReader
from mptcp_throttled.vocabulary import operations as op
from mptcp_throttled.vocabulary.control_group import EndedConnection
from mptcp_throttled.vocabulary.kernel_state import KernelState, PacingState, QdiscState, QuickCheck
from mptcp_throttled.vocabulary.traffic import ClosedSubflow

_NO_PACING: Final = "daemon.pacing is false"


class Htb(Protocol):
    """HTB of the interfaces towards the clients, with the classes. All methods raise KernelError."""

    @property
    def ports(self) -> frozenset[int]:
        """The netlink ports (nlmsg_pid) of our requests: notifications of our own changes carry them."""

    def require_htb(self) -> None:
        """Raise KernelError if there can be no HTB."""

    def read(self) -> QdiscState:
        """Our HTB, or why it cannot be installed; and the interfaces for which a restore is pending."""

    def install(self, default_minor: int) -> None:
        """Make HTB the root qdisc."""

    def restore(self, name: str | None = None) -> None:
        """Put back what was there on an interface (default: on the proxy's)."""

    def fail_open(self) -> None:
        """Restore wherever our HTB is the root."""

    def forget_stale(self) -> None:
        """Delete records of what we have not replaced."""

    def change_classes(self, operations: Sequence[op.ClassOperation]) -> list[KernelError | None]:
        """Apply the operations in order; for each, why it was refused."""

    def class_bytes(self) -> Mapping[int, int]:
        """The bytes that each class has sent, or has in its queue, by minor. May be called by any thread."""


class LinuxKernel:
    """HTB, class assignments and socket paces of this host. All methods raise KernelError.

    For one thread only: pyroute2 sockets and libiptc handles must not be shared between threads.
    """

    def __init__(self, htb: Htb, classifier: ClassifierChoice, sockets: PacedSockets | None = None) -> None:
        self.htb = htb
        self._classifier = classifier
        self._sockets = sockets

    @property
    def classifier(self) -> str:
        return self._classifier.present.kind

    def check(self) -> None:
        """Raise KernelError if HTB or what the classifier needs is missing."""
        self.htb.require_htb()
        self._classifier.require()

    def read(self) -> KernelState:
        pacing = self._pacing()  # first: it may attach the program, and so change the classifier
        qdisc = self.htb.read()
        if self._sockets is not None:
            self._sockets.set_has_qdisc(not qdisc.without_qdisc)
        return KernelState(qdisc, self._classifier.present.read(), pacing)

    def quick_check(self) -> QuickCheck:
        pacing = self._pacing()
        return QuickCheck(self._classifier.present.count(), pacing)

    def _pacing(self) -> PacingState:
        return PacingState(None, _NO_PACING) if self._sockets is None else self._sockets.read()

    def closed_subflows(self) -> Iterable[ClosedSubflow]:
        """The subflows that have closed since the last call; for any thread."""
        return () if self._sockets is None else self._sockets.closed_subflows()

    def decide_now(self) -> None:
        """Let the program decide for all sockets, idle or not; for any thread. Raises KernelError."""
        if self._sockets is not None:
            self._sockets.decide_now()

    def ended_connections(self) -> Iterable[EndedConnection]:
        return () if self._sockets is None else self._sockets.ended_connections()

    def ailments(self) -> Mapping[FourTuple, Ailment]:
        return {} if self._sockets is None else self._sockets.ailments()

    def adopt(self) -> dict[FourTuple, int]:
        """Adopt what an earlier instance has left in the kernel; returns its class assignments."""
        sockets = SocketReader(ALL_PORTS).read()  # the proxy may have opened subflows itself
        classes = {ends: state.minor for ends, state in sockets.items() if state.minor}
        assignments = dict(classes)
        for state in self._classifier.present.read().values():
            assignments |= state.assignments
        self._classifier.adopt(classes)
        if self._sockets is not None:
            # The proxy may pace its sockets, too: only those that are assigned have their pace from us.
            paces = ((ends, state.pace) for ends, state in sockets.items() if ends in assignments)
            self._sockets.adopt_paces({ends: pace for ends, pace in paces if pace is not None})
        return assignments

    def release_sockets(self) -> int:
        """Wait until sockets have lost their removed paces; the number that still have one."""
        return 0 if self._sockets is None else self._sockets.free_sockets()

    def fail_open(self) -> None:
        if self._sockets is not None:
            self._sockets.close()
        self.htb.fail_open()

    def change_classes(self, operations: Sequence[op.ClassOperation]) -> list[KernelError | None]:
        return self.htb.change_classes(operations)

    def apply(self, operation: op.OtherOperation) -> None:
        match operation:
            case op.InstallHtb(default_minor):
                self.htb.install(default_minor)
            case op.MakeAssignments(ip_version, assignments):
                self._classifier.present.make(ip_version, assignments)
            case op.ChangeAssignments(ip_version, add, remove):
                self._classifier.present.change(ip_version, add, remove)
            case op.ChangePaces(add, remove) if self._sockets is not None:
                self._sockets.change(add, remove)
            case op.RemoveAssignments(ip_version):
                self._classifier.present.remove(ip_version)
            case op.RestoreQdisc(interface):
                self.htb.restore(interface)
