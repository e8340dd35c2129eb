"""The multicast group in which generic netlink reports events of MPTCP (include/uapi/linux/mptcp.h)."""

from __future__ import annotations

import errno

from pyroute2 import GenericNetlinkSocket
from pyroute2.netlink import genlmsg

from mptcp_throttle.linux.kernel_error import KernelError, netlink_call
from mptcp_throttle.linux.timed_pyroute2 import timed


def events_group() -> int:
    """Its number. Raises KernelError, with ENOENT if the kernel has no such group (before Linux 5.12)."""
    what = "look for mptcp_pm_events"
    # pyroute2's MPTCP would look for the family in its constructor, and not close its socket if that fails.
    with netlink_call(what), timed(GenericNetlinkSocket) as generic:
        generic.bind("mptcp_pm", genlmsg)
        group: int | None = generic.mcast_groups.get("mptcp_pm_events")
    if group is None:
        raise KernelError(what, errno.ENOENT)
    return group
