"""The limits of the kernel's MPTCP path manager (generic netlink, family mptcp_pm), as `ip mptcp limits` shows them."""

from __future__ import annotations

from typing import NamedTuple

from pyroute2.netlink.generic.mptcp import MPTCP

from mptcp_throttle.linux.kernel_error import netlink_call


class Limits(NamedTuple):
    """Of a connection: subflows beside the first one, and addresses announced by the peer to which JOINs are opened."""

    subflows: int
    add_addr_accepted: int


def read_limits() -> Limits:
    """The limits of this network namespace; reading them needs no rights. Raises KernelError."""
    with netlink_call("ip mptcp limits"), MPTCP() as path_manager:
        (answer,) = path_manager.limits("show")
    return Limits(answer.get_attr("MPTCP_PM_ATTR_SUBFLOWS"), answer.get_attr("MPTCP_PM_ATTR_RCV_ADD_ADDRS"))
