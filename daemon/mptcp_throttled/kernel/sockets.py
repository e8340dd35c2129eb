"""The proxy's own TCP sockets, from inet_diag: in which cgroups they listen, and how many are paced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

from mptcp_throttle.linux.inet_diag import INET_DIAG_INFO, SS_ESTABLISHED, SS_LISTEN, InetDiag
from mptcp_throttle.linux.netlink_socket import read_consistently

_INET_DIAG_CGROUP_ID: Final = 21  # include/uapi/linux/inet_diag.h
_CGROUP_ID: Final = Struct("=Q")
_UNLIMITED: Final = 2**64 - 1
# struct tcp_info (include/uapi/linux/tcp.h): 8 bytes, 24 words, tcpi_pacing_rate, tcpi_max_pacing_rate
_MAX_PACING_RATE: Final = Struct("=112xQ")


def listener_cgroups(ports: Sequence[int]) -> frozenset[int]:
    """The ids (inode numbers) of the cgroups whose processes listen on these ports. Raises KernelError."""
    return read_consistently(
        lambda: frozenset(_CGROUP_ID.unpack(id_)[0] for id_ in _attribute(ports, SS_LISTEN, _INET_DIAG_CGROUP_ID))
    )


def count_paced(ports: Sequence[int]) -> int:
    """How many established sockets on these ports have a maximum pacing rate. Raises KernelError."""
    return read_consistently(lambda: sum(map(_is_paced, _attribute(ports, SS_ESTABLISHED, INET_DIAG_INFO))))


def _is_paced(tcp_info: bytes) -> bool:
    (rate,) = _MAX_PACING_RATE.unpack_from(tcp_info)
    return bool(rate < _UNLIMITED)


def _attribute(ports: Sequence[int], state: int, wanted: int) -> Iterator[bytes]:
    """That attribute of each socket in this state which has it."""
    with InetDiag() as diag:
        for found in diag.sockets(state, {wanted}, ports):
            if wanted in found.attributes:
                yield found.attributes[wanted]
