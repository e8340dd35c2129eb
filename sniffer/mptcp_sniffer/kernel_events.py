"""The kernel's MPTCP events (generic netlink, family mptcp_pm), which report changes of a subflow at once.

Unlike segments they cannot be forged. The kernel reports when it had to drop events; then the kernel list is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from pyroute2.netlink import NETLINK_GENERIC

from mptcp_sniffer.handshake import Ends
from mptcp_sniffer.segment import PackedEndpoint
from mptcp_throttle.linux import cbpf
from mptcp_throttle.linux.cbpf import Instruction, Line, assemble, jump_by_port
from mptcp_throttle.linux.inet_diag import unmapped
from mptcp_throttle.linux.kernel_error import KernelError, decoding_errors
from mptcp_throttle.linux.mptcp_events import events_group
from mptcp_throttle.linux.netlink_codec import attributes
from mptcp_throttle.linux.netlink_socket import NetlinkSocket
from mptcp_throttle.model import Token
from mptcp_throttle.ports import Ports

_COMMAND_OFFSET: Final = 16  # struct genlmsghdr begins with the command and follows struct nlmsghdr
_GENLMSGHDR_BYTES: Final = 4
_NLA_HDRLEN: Final = 4
# include/uapi/linux/mptcp_pm.h (before Linux 6.7 mptcp.h): MPTCP_ATTR_...
_TOKEN, _SADDR4, _SADDR6, _DADDR4, _DADDR6, _SPORT, _DPORT, _BACKUP = 1, 5, 6, 7, 8, 9, 10, 11
_TOKEN_BYTES, _PORT_BYTES, _ADDRESS_BYTES = Struct("=I"), Struct("!H"), frozenset({4, 16})
_WANTED: Final = frozenset({_TOKEN, _SADDR4, _SADDR6, _DADDR4, _DADDR6, _SPORT, _DPORT, _BACKUP})


class KernelEventKind(IntEnum):
    """The events that are received: MPTCP_EVENT_SUB_... A subflow that closes with its connection has none."""

    ESTABLISHED = 10
    CLOSED = 11
    PRIORITY = 13


class KernelEvent(NamedTuple):
    """An event of the subflow with these ends; `backup` is what its client has asked for."""

    kind: KernelEventKind
    token: Token
    ends: Ends
    backup: bool


class KernelEvents(NetlinkSocket):
    """A subscription to the events of this network namespace, except those of new subflows on `ports`.

    Raises KernelError if there is no such family (before Linux 5.12), or the capability CAP_NET_ADMIN is missing.
    """

    def __init__(self, ports: Ports) -> None:
        group = events_group()
        super().__init__(NETLINK_GENERIC, program=_event_filter(ports))
        try:
            self.join(group)
        except KernelError:
            self.close()
            raise

    def receive(self) -> Iterator[KernelEvent]:
        """Wait for events. Raises KernelError, with ENOBUFS if the kernel had to drop events."""
        with decoding_errors("receive MPTCP events"):
            for message in self.notifications():
                yield _decode(message.payload)


def _event_filter(ports: Ports) -> tuple[Instruction, ...]:
    """A socket filter: most events, several per connection, would wake the process for nothing.

    It drops new subflows on these ports of the proxy, since they are captured.
    """
    return assemble(
        (
            Line(cbpf.LDB_ABS, _COMMAND_OFFSET),
            Line(cbpf.JEQ, KernelEventKind.CLOSED, then="wanted"),
            Line(cbpf.JEQ, KernelEventKind.PRIORITY, then="wanted"),
            Line(cbpf.JEQ, KernelEventKind.ESTABLISHED, otherwise="drop"),
            Line(cbpf.LD_IMM, _COMMAND_OFFSET + _GENLMSGHDR_BYTES),
            Line(cbpf.LDX_IMM, _SPORT),
            Line(cbpf.LD, cbpf.SKF_AD_NLATTR),
            Line(cbpf.TAX),
            Line(cbpf.LDH, _NLA_HDRLEN),
            *jump_by_port(ports, "drop", "wanted"),
            "wanted",
            Line(cbpf.RET, 0xFFFF_FFFF),
            "drop",
            Line(cbpf.RET, 0),
        )
    )


def _decode(payload: bytes) -> KernelEvent:
    """Raises LookupError, ValueError or struct.error if an attribute is missing or of a wrong length."""
    values = attributes(payload, _GENLMSGHDR_BYTES, only=_WANTED)
    local, remote = (values.get(v4) or values[v6] for v4, v6 in ((_SADDR4, _SADDR6), (_DADDR4, _DADDR6)))
    return KernelEvent(
        KernelEventKind(payload[0]),
        Token(_TOKEN_BYTES.unpack(values[_TOKEN])[0]),
        Ends(_endpoint(remote, values[_DPORT]), _endpoint(local, values[_SPORT])),
        any(values.get(_BACKUP, b"")),
    )


def _endpoint(address: bytes, port: bytes) -> PackedEndpoint:
    if len(address) not in _ADDRESS_BYTES:
        raise ValueError(f"an address of {len(address)} bytes")
    return PackedEndpoint(unmapped(address), _PORT_BYTES.unpack(port)[0])
