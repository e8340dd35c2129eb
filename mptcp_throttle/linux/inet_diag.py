"""TCP sockets as the kernel lists them (inet_diag, as ss(8) uses it): structures of include/uapi/linux/inet_diag.h."""

from __future__ import annotations

import os
import socket
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from pyroute2.netlink import NETLINK_SOCK_DIAG, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR

from mptcp_throttle.linux.netlink import attributes, messages, pack

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

SS_ESTABLISHED: Final = 1
SS_LISTEN: Final = 10
"""include/net/tcp_states.h"""

_SOCK_DIAG_BY_FAMILY: Final = 20
_EXT_INFO: Final = 1 << 1  # INET_DIAG_INFO - 1; without it the kernel leaves out INET_DIAG_ULP_INFO too
_REQUEST: Final = Struct("=BBBxI2s46x")  # struct inet_diag_req_v2; of the addresses and ports only the local port
_SOCKET: Final = Struct("!BxBBHH16s16s32x")  # struct inet_diag_msg
_ERROR: Final = Struct("=i")
_IPV4_MAPPED: Final = bytes(10) + b"\xff\xff"
_RECEIVE_BYTES: Final = 2**18


class TcpSocket(NamedTuple):
    """A socket; addresses are packed, `timer` and `retransmits` are idiag_timer and idiag_retrans.

    `attributes` are those of the types (INET_DIAG_...) that were asked for.
    """

    local: bytes
    local_port: int
    remote: bytes
    remote_port: int
    timer: int
    retransmits: int
    attributes: dict[int, bytes]


def list_tcp(ports: Sequence[int], state: int, wanted: Container[int]) -> Iterator[TcpSocket]:
    """The sockets on these local ports in that state (SS_...), as the kernel comes to them. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as diag:
        for family in (socket.AF_INET, socket.AF_INET6):
            for port in ports:
                yield from (_parse(payload, wanted) for payload in _dump(diag, family, port, state))


def _dump(diag: socket.socket, family: int, port: int, state: int) -> Iterator[bytes]:
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, _EXT_INFO, 1 << state, port.to_bytes(2, "big"))
    diag.send(pack(_SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 0, request))
    while True:
        for kind, _, _, payload in messages(diag.recv(_RECEIVE_BYTES)):
            if kind == NLMSG_DONE:
                return
            if kind == NLMSG_ERROR:
                error = -_ERROR.unpack_from(payload)[0]
                raise OSError(error, os.strerror(error))
            yield payload


def _parse(payload: bytes, wanted: Container[int]) -> TcpSocket:
    family, timer, retransmits, local_port, remote_port, local, remote = _SOCKET.unpack_from(payload)
    return TcpSocket(
        _address(family, local),
        local_port,
        _address(family, remote),
        remote_port,
        timer,
        retransmits,
        attributes(payload, _SOCKET.size, only=wanted),
    )


def _address(family: int, data: bytes) -> bytes:
    if family == socket.AF_INET:
        return data[:4]
    # A socket that listens for both families has its IPv4 peers in IPv6 notation.
    return data[12:] if data.startswith(_IPV4_MAPPED) else data
