"""What inet_diag tells of the proxy's own TCP sockets: where they live, and whether they are paced."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from pyroute2.netlink.diag import SS_ESTABLISHED, SS_LISTEN, inet_diag_msg

from mptcp_throttle.inet_diag import list_tcp
from mptcp_throttled.kernel.netlink import netlink_call

_UNLIMITED: Final = 2**64 - 1
# struct tcp_info (include/uapi/linux/tcp.h): 8 bytes, 24 words, tcpi_pacing_rate, tcpi_max_pacing_rate
_MAX_PACING_RATE: Final = Struct("=112xQ")


class _Message(inet_diag_msg):  # type: ignore[misc]
    """inet_diag_msg with two attributes (include/uapi/linux/inet_diag.h)."""

    nla_map = ((2, "INET_DIAG_INFO", "cdata"), (21, "INET_DIAG_CGROUP_ID", "uint64"))


def listener_cgroups(ports: Sequence[int]) -> set[int]:
    """The ids (inode numbers) of the cgroups in which somebody listens on these ports. Raises KernelError."""
    return {message.get_attr("INET_DIAG_CGROUP_ID") for message in _list(ports, SS_LISTEN)} - {None}


def count_paced(ports: Sequence[int]) -> int:
    """How many established sockets on these ports have a maximum pacing rate. Raises KernelError."""
    infos = (message.get_attr("INET_DIAG_INFO") for message in _list(ports, SS_ESTABLISHED))
    return sum(_MAX_PACING_RATE.unpack_from(info)[0] < _UNLIMITED for info in infos if info is not None)


def _list(ports: Sequence[int], state: int) -> list[_Message]:
    with netlink_call("ss -t"):
        return list_tcp(_Message, ports, state)
