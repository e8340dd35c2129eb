"""Put back what an instance that is gone has left: our chains, and every root qdisc that is ours."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mptcp_throttle.errors import UserError
from mptcp_throttled.kernel_state import KernelError
from mptcp_throttled.plan import UNTOUCHED
from mptcp_throttled.reconcile import Reconciler

if TYPE_CHECKING:
    from mptcp_throttled.kernel import LinuxKernel

_log = logging.getLogger("mptcp-throttled")


def clean_up(kernel: LinuxKernel) -> None:
    """Leave no chain and no qdisc of ours on this host. Raises UserError naming what could not be put back."""
    outcome = Reconciler(kernel).converge(UNTOUCHED)
    for operation in outcome.done:
        _log.info("cleanup: %s", operation)
    if outcome.errors:
        raise UserError("\n".join(outcome.errors))
    try:
        kernel.forget_stale()
    except KernelError as error:
        raise UserError(str(error)) from error
