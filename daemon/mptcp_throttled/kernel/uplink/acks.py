"""ACKs that tell clients that every subflow is regular, whatever they were told before.

A killed daemon leaves no list of the clients that it has told otherwise, but the kernel knows what the next ACK of each
subflow contains (`bpf/acks.bpf.c`). MP_PRIO is added to it (RFC 8684, section 3.3.8).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from struct import Struct
from typing import Final, NamedTuple, Self

from mptcp_throttle.linux.c_layout import size_of, unpack
from mptcp_throttle.linux.kernel_error import os_errors
from mptcp_throttle.linux.libbpf import BpfObject
from mptcp_throttle.model import FourTuple
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import Proxies
from mptcp_throttled.kernel import program_layout
from mptcp_throttled.kernel.program_layout import OBJECTS, pack_settings, unpack_ends

# RFC 9293, section 3.1; RFC 791, section 3.1; RFC 8200, section 3
_TCP: Final = Struct("!HHIIBBHHH")
_IPV4: Final = Struct("!BBHHHBBH4s4s")
_IPV6: Final = Struct("!IHBB16s16s")
_PSEUDO_HEADER: Final = Struct("!HH")
_FLAG_ACK: Final = 0x10
_DO_NOT_FRAGMENT: Final = 0x4000
_HOPS: Final = 64
_TIMESTAMPS: Final = Struct("!BBBBII")  # NOP, NOP, kind 8, length 10: RFC 7323, section 3.2
_REGULAR_OPTION: Final = bytes.fromhex("011e0350")
"""NOP, and MP_PRIO without the B bit; behind all other options, as bpf/uplink.bpf.c appends it."""

# include/uapi/linux/in.h, in6.h: they choose the route by the address of the proxy that the client knows.
_IP_PKTINFO: Final = 8
_IPV4_SOURCE: Final = Struct("=i4s4x")
_IPV6_SOURCE: Final = Struct("=16si")


class Ack(NamedTuple):
    """What the next ACK of a subflow contains; `timestamps` are the proxy's and the client's, None if it has none."""

    ends: FourTuple
    sequence: int
    acknowledged: int
    window: int
    timestamps: tuple[int, int] | None

    def packet(self) -> bytes:
        """The ACK as an IP packet, with the option that the subflow is regular."""
        client, proxy = self.ends.client, self.ends.proxy
        options = b"" if self.timestamps is None else _TIMESTAMPS.pack(1, 1, 8, 10, *self.timestamps)
        options += _REGULAR_OPTION
        offset = (_TCP.size + len(options)) // 4 << 4
        before = proxy.port, client.port, self.sequence, self.acknowledged, offset, _FLAG_ACK, self.window
        addresses = proxy.address.packed + client.address.packed
        length = _TCP.size + len(options)
        pseudo_header = addresses + _PSEUDO_HEADER.pack(socket.IPPROTO_TCP, length)
        checksum = _checksum(pseudo_header + _TCP.pack(*before, 0, 0) + options)
        segment = _TCP.pack(*before, checksum, 0) + options
        if proxy.address.version == 6:
            return _IPV6.pack(6 << 28, length, socket.IPPROTO_TCP, _HOPS, addresses[:16], addresses[16:]) + segment
        # The kernel fills in the checksum (raw(7)).
        header = 0x45, 0, _IPV4.size + length, 0, _DO_NOT_FRAGMENT, _HOPS, socket.IPPROTO_TCP, 0
        return _IPV4.pack(*header, addresses[:4], addresses[4:]) + segment


def list_acks(ports: Ports) -> Iterator[Ack]:
    """The next ACK of each subflow on these ports of the proxy, except of backups that the proxy's kernel asked for.

    Raises KernelError.
    """
    with closing(BpfObject(OBJECTS / "acks.bpf.o", pack_settings(0, Proxies.only(ports), 0))) as program:
        records = program.iterate("list_acks")
    size = size_of(program_layout.Ack)
    for offset in range(0, len(records), size):
        ack = unpack(program_layout.Ack, records[offset : offset + size])
        timestamps = (ack.timestamp, ack.timestamp_echo) if ack.has_timestamps else None
        yield Ack(unpack_ends(ack.ends), ack.sequence, ack.acknowledged, ack.window, timestamps)


class AckSender:
    """Sends them, by raw sockets. All methods raise KernelError."""

    def __init__(self) -> None:
        with os_errors("open raw sockets"):
            self._ipv4 = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
            try:
                self._ipv6 = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW)
            except OSError:
                self._ipv4.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ipv4.close()
        self._ipv6.close()

    def send(self, ack: Ack) -> None:
        """Send an ACK."""
        client, proxy = ack.ends.client.address, ack.ends.proxy.address
        with os_errors(f"send an ACK to {client}"):
            if client.version == 4:
                source = socket.IPPROTO_IP, _IP_PKTINFO, _IPV4_SOURCE.pack(0, proxy.packed)
                self._ipv4.sendmsg([ack.packet()], [source], 0, (str(client), 0))
            else:
                source = socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, _IPV6_SOURCE.pack(proxy.packed, 0)
                self._ipv6.sendmsg([ack.packet()], [source], 0, (str(client), 0))


def _checksum(data: bytes) -> int:
    """RFC 1071."""
    total = sum(int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
