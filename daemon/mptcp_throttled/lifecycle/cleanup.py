"""Remove what another instance has left behind: our chains, sets and paces, and every root qdisc that is ours."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from mptcp_throttle.durable_file import write_atomically
from mptcp_throttle.errors import UserError
from mptcp_throttle.linux.kernel_error import KernelError, os_errors
from mptcp_throttled.enforcing.reconciler import Reconciler
from mptcp_throttled.kernel.sockets.pacing import PacedSockets
from mptcp_throttled.kernel.uplink.acks import AckSender, list_acks
from mptcp_throttled.vocabulary.kernel_plan import UNTOUCHED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from mptcp_throttle.model import FourTuple
    from mptcp_throttled.kernel.linux_kernel import LinuxKernel
    from mptcp_throttled.kernel.uplink.clsact_filters import ClsactFilters

_log = logging.getLogger("mptcp-throttled")

_UNTOLD: Final = "clients-untold"
_TELLING_ATTEMPTS: Final = 3
_TELLING_SECONDS: Final = 0.2


def release_sockets(release: Callable[[], int]) -> None:
    """Free the sockets of their paces and classes; log it if one keeps its pace, or if that cannot be determined.

    `release` does it, and returns how many keep their pace. It raises KernelError.
    """
    try:
        paced = release()
    except KernelError as error:
        _log.warning("sockets of the proxy may keep their pace: %s", error)
        return
    if paced:
        _log.warning(
            "%d idle sockets of the proxy keep their pace until they are used while mptcp-throttled runs", paced
        )


def release_ports(ports: Iterable[int]) -> None:
    """Free all sockets on these ports, as `release_sockets` does."""
    for port in ports:
        release_sockets(PacedSockets((port,)).release)


def free_uplinks(filters: ClsactFilters, directory: Path, ports: Collection[int]) -> None:
    """Free the uplinks that another instance has left throttled; what cannot be freed is logged.

    Its filter tells that there may be any: then all clients are told that their subflows are regular. A file in
    `directory` remembers that until it is done.
    """
    untold = directory / _UNTOLD
    try:
        interfaces = filters.interfaces()
        if interfaces:
            with os_errors(f"{untold}"):
                write_atomically(untold, "")
        for interface in interfaces:
            filters.detach(interface)
        filters.forget_stale()
    except KernelError as error:
        _log.warning("uplinks may stay throttled: %s", error)
        return
    if not untold.exists():
        return
    try:
        told = _tell_clients(ports)
        with os_errors(f"{untold}"):
            untold.unlink(missing_ok=True)
    except KernelError as error:
        _log.warning("clients may use subflows as backups until the next start: %s", error)
    else:
        _log.info("uplinks of an earlier instance: %d subflows freed", told)


def _tell_clients(ports: Collection[int]) -> int:
    told: set[FourTuple] = set()
    with AckSender() as sender:
        for attempt in range(_TELLING_ATTEMPTS):  # MP_PRIO is not acknowledged
            if attempt:
                time.sleep(_TELLING_SECONDS)
            for ack in (ack for port in ports for ack in list_acks(port)):
                with suppress(KernelError):  # a client that cannot be reached now
                    sender.send(ack)
                    told.add(ack.ends)
    return len(told)


def remove_leftovers(kernel: LinuxKernel) -> None:
    """Remove what an instance with another back end has left; what cannot be removed is logged."""
    outcome = Reconciler(kernel).full(UNTOUCHED)
    for operation in outcome.done:
        _log.info("of another back end: %s", operation)
    for failure in outcome.failures:
        _log.warning("of another back end, something may be left: %s", failure)


def clean_up(kernel: LinuxKernel) -> None:
    """Leave nothing of ours on this host. Raises UserError naming what could not be removed or restored."""
    outcome = Reconciler(kernel).full(UNTOUCHED)
    for operation in outcome.done:
        _log.info("cleanup: %s", operation)
    release_sockets(kernel.release_sockets)
    if outcome.failures:
        raise UserError("\n".join(outcome.failures))
    try:
        kernel.forget_stale()
    except KernelError as error:
        raise UserError(str(error)) from error
