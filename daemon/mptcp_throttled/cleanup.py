"""Remove what another instance has left behind: our chains, sets and paces, and every root qdisc that is ours."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mptcp_throttle.errors import UserError
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttled.desired.kernel_plan import UNTOUCHED
from mptcp_throttled.kernel.pacing import PacedSockets
from mptcp_throttled.reconcile.reconciler import Reconciler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mptcp_throttled.kernel.linux_kernel import LinuxKernel

_log = logging.getLogger("mptcp-throttled")


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
