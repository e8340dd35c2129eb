"""What inet_diag tells of the proxy's own TCP sockets: where they live, and whether they are paced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

from mptcp_throttle.linux.inet_diag import SS_ESTABLISHED, SS_LISTEN, TcpSocket, list_tcp
from mptcp_throttled.kernel.tc import netlink_call

# include/uapi/linux/inet_diag.h
_INET_DIAG_INFO: Final = 2
_INET_DIAG_CGROUP_ID: Final = 21
_CGROUP_ID: Final = Struct("=Q")
_UNLIMITED: Final = 2**64 - 1
# struct tcp_info (include/uapi/linux/tcp.h): 8 bytes, 24 words, tcpi_pacing_rate, tcpi_max_pacing_rate
_MAX_PACING_RATE: Final = Struct("=112xQ")


def listener_cgroups(ports: Sequence[int]) -> frozenset[int]:
    """The ids (inode numbers) of the cgroups in which somebody listens on these ports. Raises KernelError."""
    ids = (listener.attributes.get(_INET_DIAG_CGROUP_ID) for listener in _list(ports, SS_LISTEN, _INET_DIAG_CGROUP_ID))
    return frozenset(_CGROUP_ID.unpack(found)[0] for found in ids if found is not None)


def count_paced(ports: Sequence[int]) -> int:
    """How many established sockets on these ports have a maximum pacing rate. Raises KernelError."""
    established = _list(ports, SS_ESTABLISHED, _INET_DIAG_INFO)
    infos = (one.attributes.get(_INET_DIAG_INFO) for one in established)
    return sum(_MAX_PACING_RATE.unpack_from(info)[0] < _UNLIMITED for info in infos if info is not None)


def _list(ports: Sequence[int], state: int, wanted: int) -> Iterator[TcpSocket]:
    with netlink_call("ss -t"):
        yield from list_tcp(ports, state, {wanted})
