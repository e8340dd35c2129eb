"""Put back what an instance that is gone has left: our chains, and every root qdisc that is ours."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mptcp_throttle.errors import UserError
from mptcp_throttled.kernel.marks import MarkChains
from mptcp_throttled.kernel.qdisc import RootQdisc, interfaces_under_our_htb
from mptcp_throttled.kernel_state import KernelError

if TYPE_CHECKING:
    from pathlib import Path

    from mptcp_throttled.kernel.htb import Marking

_log = logging.getLogger("mptcp-throttled")


def clean_up(marking: Marking, state_directory: Path) -> None:
    """Leave no chain and no qdisc of ours on this host. Raises UserError naming what could not be put back."""
    problems = []
    try:
        chains = MarkChains(marking.mask)
        for ip_version in chains.present():
            chains.remove(ip_version)
            _log.info("removed the IPv%d chain", ip_version)
    except KernelError as error:
        problems.append(str(error))
    problems += restore_qdiscs(marking, state_directory)
    if problems:
        raise UserError("\n".join(problems))


def restore_qdiscs(marking: Marking, state_directory: Path, *, but: str | None = None) -> list[str]:
    """Restore the root qdisc of every interface under our HTB, `but` one; returns what went wrong, a line each.

    An interface other than the configured one is under our HTB if the configuration has named another since.
    """
    problems = []
    for interface in interfaces_under_our_htb():
        if interface == but:
            continue
        try:
            RootQdisc(interface, marking, state_directory).restore()
            _log.info("restored the root qdisc of %s", interface)
        except KernelError as error:
            problems.append(str(error))
    return problems
