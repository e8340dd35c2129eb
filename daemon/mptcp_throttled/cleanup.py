"""Put back what an instance that is gone has left: our chains, and every root qdisc that is ours."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mptcp_throttle.errors import UserError
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttled.desired.kernel_plan import UNTOUCHED
from mptcp_throttled.reconcile.reconciler import Reconciler

if TYPE_CHECKING:
    from mptcp_throttled.kernel.linux_kernel import LinuxKernel

_log = logging.getLogger("mptcp-throttled")


def release_sockets(kernel: LinuxKernel) -> None:
    """See that no socket keeps a pace, and say so if one does, or if that cannot be told."""
    try:
        paced = kernel.release_sockets()
    except KernelError as error:
        _log.warning("sockets of the proxy may keep their pace: %s", error)
        return
    if paced:
        _log.warning(
            "%d idle sockets of the proxy keep their pace until they are used while mptcp-throttled runs", paced
        )


def clean_up(kernel: LinuxKernel) -> None:
    """Leave no chain and no qdisc of ours on this host. Raises UserError naming what could not be put back."""
    outcome = Reconciler(kernel).converge(UNTOUCHED)
    for operation in outcome.done:
        _log.info("cleanup: %s", operation)
    if outcome.errors:
        raise UserError("\n".join(outcome.errors))
    release_sockets(kernel)
    try:
        kernel.forget_stale()
    except KernelError as error:
        raise UserError(str(error)) from error
