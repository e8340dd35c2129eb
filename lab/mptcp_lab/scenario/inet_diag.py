"""What ss(8) would show of the established TCP sockets of a network namespace, without starting it for every sample.

Structures and constants: include/uapi/linux/{inet_diag,sock_diag,tcp}.h.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_DUMP_REQUEST: Final = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_ESTABLISHED: Final = 1 << 1
_INET_DIAG_INFO: Final = 2
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBBI48x")
_MESSAGE_BYTES: Final = 72  # struct inet_diag_msg
_ATTRIBUTE: Final = struct.Struct("=HH")
_ADDRESS_BYTES: Final = {socket.AF_INET: 4, socket.AF_INET6: 16}
# struct tcp_info: offsets of the fields; older kernels hand out a shorter one.
_U32: Final = {"rtt": 68, "cwnd": 80, "retransmits": 100, "out_of_order": 224}
_U64: Final = {"pacing": 104, "acked": 120, "received": 128}


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """A TCP socket, perhaps an MPTCP subflow, as its host sees it.

    `acked` and `received` are bytes of payload, `rtt` is in seconds, `pacing` in bits per second (0: not paced),
    `cwnd`, `retransmits` and `out_of_order` in segments.
    """

    cookie: int
    local: str
    local_port: int
    remote: str
    remote_port: int
    acked: int
    received: int
    cwnd: int
    rtt: float
    pacing: int
    retransmits: int
    out_of_order: int


class InetDiag:
    """A netlink socket of the network namespace in which it is made, wherever its thread goes afterwards."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
        self._socket.settimeout(5.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def established(self) -> list[TcpSocket]:
        """The established TCP sockets. Raises OSError if the kernel does not list them."""
        return [found for family in (socket.AF_INET, socket.AF_INET6) for found in self._dump(family)]

    def _dump(self, family: int) -> Iterator[TcpSocket]:
        request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _ESTABLISHED)
        self._socket.send(
            _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _DUMP_REQUEST, 1, 0) + request
        )
        while True:
            data = self._socket.recv(65536)
            while data:
                length, kind, *_ = _HEADER.unpack_from(data)
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    raise OSError(-struct.unpack_from("=i", data, _HEADER.size)[0], "inet_diag refuses to list sockets")
                yield _parse(data[_HEADER.size : length])
                data = data[-(-length // 4) * 4 :]


def _parse(message: bytes) -> TcpSocket:
    """One `struct inet_diag_msg` and its attributes."""
    size = _ADDRESS_BYTES[socket.AddressFamily(message[0])]
    local_port, remote_port = struct.unpack_from("!HH", message, 4)
    local, remote = message[8 : 8 + size], message[24 : 24 + size]
    info = _attribute(message[_MESSAGE_BYTES:], _INET_DIAG_INFO)
    words = {name: _field(info, offset, 4) for name, offset in _U32.items()}
    longs = {name: _field(info, offset, 8) for name, offset in _U64.items()}
    unlimited = 2**64 - 1  # ~0UL: the socket is not paced
    return TcpSocket(
        cookie=int.from_bytes(message[44:52], "little"),
        local=_text(local),
        local_port=local_port,
        remote=_text(remote),
        remote_port=remote_port,
        acked=longs["acked"],
        received=longs["received"],
        cwnd=words["cwnd"],
        rtt=words["rtt"] / 1e6,
        pacing=0 if longs["pacing"] == unlimited else longs["pacing"] * 8,
        retransmits=words["retransmits"],
        out_of_order=words["out_of_order"],
    )


def _attribute(data: bytes, wanted: int) -> bytes:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if kind == wanted:
            return data[_ATTRIBUTE.size : length]
        data = data[-(-max(length, _ATTRIBUTE.size) // 4) * 4 :]
    return b""


def _field(info: bytes, offset: int, size: int) -> int:
    return int.from_bytes(info[offset : offset + size], "little") if len(info) >= offset + size else 0


def _text(packed: bytes) -> str:
    address = ip_address(packed)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        # A socket that listens for both families has its IPv4 peers in IPv6 notation.
        address = address.ipv4_mapped
    return str(address)
