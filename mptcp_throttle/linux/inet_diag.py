"""TCP sockets as the kernel lists them (inet_diag, as ss(8) uses it): structures of include/uapi/linux/inet_diag.h.

The sniffer lists them about once a second, while its other threads wait (docs/explanation/own-code.md has the figures).
pyroute2's DiagSocket ignores errors of the kernel.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Container, Iterator, Mapping
from struct import Struct
from typing import Final, NamedTuple

from pyroute2.netlink import NETLINK_SOCK_DIAG

from mptcp_throttle.linux.kernel_error import KernelError, decoding_errors
from mptcp_throttle.linux.netlink_codec import attribute, attributes
from mptcp_throttle.linux.netlink_socket import NetlinkSocket, Request
from mptcp_throttle.ports import ALL_PORTS, Ports

ESTABLISHED: Final = 1 << 1
FIN_WAIT1: Final = 1 << 4
FIN_WAIT2: Final = 1 << 5
CLOSE_WAIT: Final = 1 << 8
LAST_ACK: Final = 1 << 9
LISTEN: Final = 1 << 10
CLOSING: Final = 1 << 11
"""Sets of TCP states (include/net/tcp_states.h, TCPF_...)."""

SENDING: Final = ESTABLISHED | CLOSE_WAIT
"""The states in which MPTCP gives a subflow data to send (net/mptcp/protocol.h, __mptcp_subflow_active)."""

CLOSED_HERE: Final = FIN_WAIT1 | LAST_ACK | CLOSING
"""The states in which this end has closed, and may still have to send what was queued before."""

INET_DIAG_INFO: Final = 2
"""The attribute with struct tcp_info."""
INET_DIAG_CLASS_ID: Final = 17
"""The attribute with the socket's priority, unless a net_cls cgroup has given it a class (net/ipv4/inet_diag.c)."""
INET_DIAG_ULP_INFO: Final = 19
"""The attribute with what MPTCP knows of the socket."""

_SOCK_DIAG_BY_FAMILY: Final = 20  # include/uapi/linux/sock_diag.h
# The older request lists the sockets of both families: for each request the kernel walks all sockets of the machine.
_TCPDIAG_GETSOCK: Final = 18
_INET_DIAG_TCLASS: Final = 6
# Without INFO the kernel leaves out INET_DIAG_ULP_INFO, too; with TCLASS it adds INET_DIAG_CLASS_ID.
_EXTENSIONS: Final = 1 << INET_DIAG_INFO - 1 | 1 << _INET_DIAG_TCLASS - 1
_REQUEST: Final = Struct("=3xB48xI4x")  # struct inet_diag_req: extensions, states
# struct inet_diag_bc_op: a code, and how many bytes to advance if it is true, and if not. A comparison is two of them;
# the last field of the second is the port.
_REQ_BYTECODE: Final = 1
_BC_JMP, _BC_S_GE, _BC_S_LE = 1, 2, 3
_OPERATION: Final = Struct("=BBH")
_COMPARISON: Final = Struct("=BBH2xH")
# struct inet_diag_req_v2, of one socket: family, protocol, extensions; local and remote port and address; any
# interface, any cookie.
_FIND: Final = Struct("!BBBx4xHH16s16s4x8s")
_ANY_COOKIE: Final = b"\xff" * 8  # INET_DIAG_NOCOOKIE
_IPV4_BYTES: Final = 4
_ATTRIBUTE_HEADER: Final = 4  # include/uapi/linux/netlink.h, NLA_HDRLEN
_SOCKET: Final = Struct("!BBBBHH16s16s4x8s20x")  # struct inet_diag_msg
_INODE: Final = Struct("=68xI")  # of the same structure, idiag_inode
IPV4_MAPPED: Final = bytes(10) + b"\xff\xff"
LIST_SOCKETS: Final = "ss -t"
"""What the requests are named."""


class TcpSocket(NamedTuple):
    """A socket; addresses are packed, `timer` and `retransmits` are idiag_timer and idiag_retrans; `state` is a set.

    `cookie` identifies the socket for as long as it exists. `attributes` has the wanted types (INET_DIAG_...) only.
    """

    local: bytes
    local_port: int
    remote: bytes
    remote_port: int
    state: int
    timer: int
    retransmits: int
    cookie: bytes
    attributes: dict[int, bytes]


class InetDiag(NetlinkSocket):
    """Lists the TCP sockets of the network namespace in which it was opened. All methods raise KernelError."""

    def __init__(self) -> None:
        super().__init__(NETLINK_SOCK_DIAG)

    def sockets(self, states: int, wanted: Container[int], ports: Ports = ALL_PORTS) -> Iterator[TcpSocket]:
        """The sockets in these states with one of these local ports, as they arrive from the kernel.

        Raises DumpInterrupted at the end if all that was yielded is void: read it in `read_consistently`.
        """
        with decoding_errors(LIST_SOCKETS):
            for payload in self.list_payloads(states, ports):
                yield parse_socket(payload, wanted)

    def find(
        self, local: bytes, local_port: int, remote: bytes, remote_port: int, wanted: Container[int]
    ) -> TcpSocket | None:
        """The socket with these ports and packed addresses, in whatever state; None if there is none."""
        family = socket.AF_INET if len(local) == _IPV4_BYTES else socket.AF_INET6
        ends = local_port, remote_port, local.ljust(16, b"\0"), remote.ljust(16, b"\0")
        payload = _FIND.pack(family, socket.IPPROTO_TCP, _EXTENSIONS, *ends, _ANY_COOKIE)
        try:
            answers = self.get(Request(LIST_SOCKETS, _SOCK_DIAG_BY_FAMILY, 0, payload))
        except KernelError as error:
            if error.number == errno.ENOENT:
                return None
            raise
        with decoding_errors(LIST_SOCKETS):
            sockets = [parse_socket(answer, wanted) for answer in answers]
        return next((match for match in sockets if match.remote_port == remote_port), None)  # not a listening socket

    def list_payloads(self, states: int, ports: Ports = ALL_PORTS) -> Iterator[bytes]:
        """As `sockets`, not decoded: for `parse_socket` and `parse_attributes`."""
        payload = _REQUEST.pack(_EXTENSIONS, states)
        if ports != ALL_PORTS:
            payload += attribute(_REQ_BYTECODE, _selecting(ports))
        return self.stream(Request(LIST_SOCKETS, _TCPDIAG_GETSOCK, 0, payload))


def _selecting(ports: Ports) -> bytes:
    """The program with which the kernel selects sockets by local port (net/ipv4/inet_diag.c, inet_diag_bc_run).

    It accepts a socket when it gets to its end, and rejects it when it jumps to 4 bytes beyond.
    """
    code = b""
    for each in reversed(ports.ranges):
        accept = _OPERATION.pack(_BC_JMP, _OPERATION.size, _OPERATION.size + len(code)) if code else b""
        is_not_above = _COMPARISON.pack(_BC_S_LE, _COMPARISON.size, _COMPARISON.size + _OPERATION.size, each[-1])
        rest = is_not_above + accept + code
        end = _COMPARISON.size + len(rest)
        code = _COMPARISON.pack(_BC_S_GE, _COMPARISON.size, end + _OPERATION.size, each[0]) + rest
    return code


def parse_socket(payload: bytes, wanted: Container[int]) -> TcpSocket:
    """A message of the listing: struct inet_diag_msg, and attributes. Raises struct.error if it is cut."""
    family, state, timer, retransmits, local_port, remote_port, local, remote, cookie = _SOCKET.unpack_from(payload)
    return TcpSocket(
        _address(family, local),
        local_port,
        _address(family, remote),
        remote_port,
        1 << state,
        timer,
        retransmits,
        cookie,
        parse_attributes(payload, wanted),
    )


def parse_attributes(payload: bytes, wanted: Container[int]) -> dict[int, bytes]:
    """The attributes of these types (INET_DIAG_...) in a message of the listing."""
    return attributes(payload, _SOCKET.size, only=wanted)


class ListeningSocket(NamedTuple):
    """A socket that listens: its packed address, its port, the inode of its file, and whether it accepts MPTCP."""

    local: bytes
    port: int
    inode: int
    mptcp: bool


def list_listening(diag: InetDiag) -> Iterator[ListeningSocket]:
    """The sockets that listen. Raises KernelError, as `InetDiag.sockets` does.

    A TCP socket of MPTCP has the inode of the MPTCP socket that a process has (net/mptcp/subflow.c,
    mptcp_subflow_create_socket). Older kernels tell only CAP_NET_ADMIN that it is one.
    """
    with decoding_errors(LIST_SOCKETS):
        for payload in diag.list_payloads(LISTEN):
            listener = parse_socket(payload, {INET_DIAG_ULP_INFO})
            is_mptcp = is_of_mptcp(listener.attributes)
            yield ListeningSocket(listener.local, listener.local_port, _INODE.unpack_from(payload)[0], is_mptcp)


def is_of_mptcp(attributes: Mapping[int, bytes]) -> bool:
    """Whether a socket with these attributes, INET_DIAG_ULP_INFO among them, is a subflow, or listens for them."""
    # INET_ULP_INFO_NAME is the first attribute in this one (net/ipv4/tcp_diag.c, tcp_diag_put_ulp).
    return attributes.get(INET_DIAG_ULP_INFO, b"").startswith(b"mptcp\0", _ATTRIBUTE_HEADER)


def _address(family: int, data: bytes) -> bytes:
    return data[:4] if family == socket.AF_INET else unmapped(data)


def unmapped(address: bytes) -> bytes:
    """A packed address, as IPv4 if it is IPv4-mapped.

    A socket that listens for both families shows its IPv4 peers that way.
    """
    return address[12:] if address.startswith(IPV4_MAPPED) else address
