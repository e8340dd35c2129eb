"""What the kernel knows: the live MPTCP subflows of the proxy's sockets, where the proxy runs on this host.

inet_diag lists them with token, address id and backup flag, to those with CAP_NET_ADMIN. A generic netlink group tells
when something has happened to any of them. Neither exists on a box that only forwards.
"""

from __future__ import annotations

import time
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from pyroute2 import GenericNetlinkSocket
from pyroute2.netlink import genlmsg, nla
from pyroute2.netlink.diag import SS_ESTABLISHED, inet_diag_msg
from pyroute2.netlink.exceptions import NetlinkError

from mptcp_sniffer.handshake import Ends
from mptcp_sniffer.segment import PackedEndpoint
from mptcp_throttle.inet_diag import list_tcp
from mptcp_throttle.model import Token
from mptcp_throttle.service import missing_capabilities

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CAP_NET_ADMIN: Final = 12  # include/uapi/linux/capability.h
_TIMER_RETRANSMIT: Final = 1  # net/ipv4/inet_diag.c, inet_sk_diag_fill
_STALLED_RETRANSMITS: Final = 2
_FLAGS_CAPABLE_OR_JOIN: Final = 0b1111  # MPTCP_SUBFLOW_FLAG_MCAP_REM, _MCAP_LOC, _JOIN_REM, _JOIN_LOC
_FLAGS_BACKUP: Final = 0b11_0000  # MPTCP_SUBFLOW_FLAG_BKUP_REM, _BKUP_LOC


class ListedSubflow(NamedTuple):
    """A subflow as the kernel lists it; `address_id` is the client's.

    `stalled`: the retransmission timer has run out twice in a row. Once happens on every lossy path.
    """

    token: Token
    address_id: int
    backup: bool
    stalled: bool = False


class KernelView(NamedTuple):
    """The live subflows at a time, in seconds since the epoch, not later than the listing began."""

    at: float
    subflows: dict[Ends, ListedSubflow]


class KernelViewUnavailable(Exception):
    """The kernel cannot or will not list MPTCP subflows, and why."""


class _Message(inet_diag_msg):  # type: ignore[misc]
    """inet_diag_msg with the one attribute that matters (include/uapi/linux/inet_diag.h)."""

    nla_map = ((19, "INET_DIAG_ULP_INFO", "ulp_info"),)

    class ulp_info(nla):  # type: ignore[misc]  # noqa: N801
        """include/uapi/linux/inet_diag.h, INET_ULP_INFO_*."""

        nla_map = ((1, "INET_ULP_INFO_NAME", "asciiz"), (3, "INET_ULP_INFO_MPTCP", "mptcp"))

        class mptcp(nla):  # type: ignore[misc]  # noqa: N801
            """include/uapi/linux/mptcp.h, MPTCP_SUBFLOW_ATTR_*."""

            nla_map = (
                (2, "TOKEN_LOC", "uint32"),
                (8, "FLAGS", "uint32"),
                (9, "ID_REM", "uint8"),
            )


def list_subflows(ports: Sequence[int]) -> KernelView:
    """The established MPTCP subflows of this host's sockets on `ports`. Raises KernelViewUnavailable."""
    if missing_capabilities(CAP_NET_ADMIN=_CAP_NET_ADMIN):
        # To others the kernel lists the same sockets, as if they were plain TCP.
        raise KernelViewUnavailable("needs CAP_NET_ADMIN")
    at = time.time()
    try:
        messages = list_tcp(_Message, ports, SS_ESTABLISHED)
    except (OSError, NetlinkError) as error:
        raise KernelViewUnavailable(str(error)) from error
    return KernelView(at, dict(_subflows(messages)))


def _subflows(messages: Sequence[_Message]) -> Iterator[tuple[Ends, ListedSubflow]]:
    for message in messages:
        mptcp = message.get_nested("INET_DIAG_ULP_INFO", "INET_ULP_INFO_MPTCP")
        if mptcp is None:
            continue
        flags = mptcp.get_attr("FLAGS") or 0
        if not flags & _FLAGS_CAPABLE_OR_JOIN:
            continue
        ends = Ends(
            _pack(message["idiag_dst"], message["idiag_dport"]), _pack(message["idiag_src"], message["idiag_sport"])
        )
        yield (
            ends,
            ListedSubflow(
                Token(mptcp.get_attr("TOKEN_LOC")),
                mptcp.get_attr("ID_REM") or 0,
                bool(flags & _FLAGS_BACKUP),
                message["idiag_timer"] == _TIMER_RETRANSMIT and message["idiag_retrans"] >= _STALLED_RETRANSMITS,
            ),
        )


def _pack(text: str, port: int) -> PackedEndpoint:
    address = ip_address(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        # A socket that listens for both families has its IPv4 peers in IPv6 notation.
        address = address.ipv4_mapped
    return PackedEndpoint(address.packed, port)


class KernelEvents:
    """A subscription to the kernel's MPTCP events (genetlink family mptcp_pm); what they say is left to the listing.

    Raises KernelViewUnavailable if there is no such family or the capability CAP_NET_ADMIN is missing.
    """

    def __init__(self) -> None:
        try:
            self._socket = GenericNetlinkSocket()
            self._socket.bind("mptcp_pm", genlmsg)
            self._socket.add_membership("mptcp_pm_events")
        except (OSError, NetlinkError, KeyError) as error:
            raise KernelViewUnavailable(f"mptcp_pm_events: {error}") from error

    def fileno(self) -> int:
        """For select()."""
        return int(self._socket.fileno())

    def drain(self) -> None:
        """Take all pending events off the socket."""
        self._socket.recv(65536)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
