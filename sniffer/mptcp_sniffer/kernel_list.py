"""The kernel list: the live MPTCP subflows of the proxy's sockets, if the proxy runs on this host.

inet_diag lists them with token, address id and backup flag to processes with CAP_NET_ADMIN. On a host that only
forwards the list is empty.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from mptcp_sniffer.handshake import Ends
from mptcp_sniffer.segment import PackedEndpoint
from mptcp_throttle.linux.inet_diag import (
    CLOSED_HERE,
    INET_DIAG_INFO,
    INET_DIAG_ULP_INFO,
    LIST_SOCKETS,
    SENDING,
    InetDiag,
    TcpSocket,
)
from mptcp_throttle.linux.kernel_error import KernelError, decoding_errors
from mptcp_throttle.linux.netlink_codec import attributes
from mptcp_throttle.linux.netlink_socket import read_consistently
from mptcp_throttle.model import Token
from mptcp_throttle.ports import ALL_PORTS, Ports
from mptcp_throttle.service import CAP_NET_ADMIN, missing_capabilities

_TIMER_RETRANSMIT: Final = 1  # net/ipv4/inet_diag.c, inet_sk_diag_fill
_STALLED_RETRANSMITS: Final = 2
_ULP_INFO_MPTCP: Final = 3  # include/uapi/linux/inet_diag.h, INET_ULP_INFO_MPTCP
# include/uapi/linux/mptcp.h: MPTCP_SUBFLOW_ATTR_...
_TOKEN_LOC, _FLAGS, _ID_REM = 2, 8, 9
_WANTED: Final = frozenset({INET_DIAG_ULP_INFO, INET_DIAG_INFO})
_NOTSENT_BYTES: Final = Struct("=144xI")  # struct tcp_info (include/uapi/linux/tcp.h): tcpi_notsent_bytes
_FIN: Final = 1
_U8, _U32 = Struct("=B"), Struct("=I")
_OF_ULP: Final = frozenset({_ULP_INFO_MPTCP})
_OF_MPTCP: Final = frozenset({_TOKEN_LOC, _FLAGS, _ID_REM})
_FLAGS_CAPABLE_OR_JOIN: Final = 0b1111  # MPTCP_SUBFLOW_FLAG_MCAP_REM, _MCAP_LOC, _JOIN_REM, _JOIN_LOC
_FLAG_CAPABLE_BY_CLIENT: Final = 0b1  # MPTCP_SUBFLOW_FLAG_MCAP_REM
_FLAG_BACKUP_BY_CLIENT, _FLAG_BACKUP_BY_PROXY = 0b01_0000, 0b10_0000  # MPTCP_SUBFLOW_FLAG_BKUP_REM, _BKUP_LOC


class ListedSubflow(NamedTuple):
    """A subflow as the kernel lists it; `address_id` is the client's, and so is `backup`.

    `stalled`: the retransmission timer has expired twice in a row; once is normal on a lossy path. `closing`: the proxy
    has closed it, and queued data is left to send. `is_first`: its SYN began the connection (MP_CAPABLE).
    """

    token: Token
    address_id: int
    backup: bool
    stalled: bool = False
    closing: bool = False
    backup_by_proxy: bool = False
    is_first: bool = False


class KernelList(NamedTuple):
    """The live subflows, on the proxy's ports or `on_all_ports`. The kernel was asked just after `at`, in monotonic
    seconds."""

    at: float
    subflows: dict[Ends, ListedSubflow]
    on_all_ports: bool = True


class KernelListUnavailable(Exception):
    """The kernel does not list MPTCP subflows; the message says why."""


def list_subflows(ports: Ports) -> KernelList:
    """The MPTCP subflows of this host's sockets on `ports` that can send, or still have data queued.

    Raises KernelListUnavailable.
    """
    if missing_capabilities(CAP_NET_ADMIN=CAP_NET_ADMIN):
        # Without it the kernel lists the same sockets as if they were plain TCP.
        raise KernelListUnavailable("needs CAP_NET_ADMIN")
    try:
        # An interrupted listing is discarded.
        return read_consistently(lambda: _list(ports))
    except KernelError as error:
        raise KernelListUnavailable(str(error)) from error


def _list(ports: Ports) -> KernelList:
    at = time.monotonic()
    with InetDiag() as diag, decoding_errors(LIST_SOCKETS):
        subflows = dict(_subflows(diag.sockets(SENDING | CLOSED_HERE, _WANTED, ports)))
        return KernelList(at, subflows, ports == ALL_PORTS)


def _subflows(sockets: Iterable[TcpSocket]) -> Iterator[tuple[Ends, ListedSubflow]]:
    for tcp in sockets:
        closed = bool(tcp.state & CLOSED_HERE)
        if closed and _unsent(tcp) <= _FIN:
            continue
        ulp = attributes(tcp.attributes.get(INET_DIAG_ULP_INFO, b""), only=_OF_ULP)
        mptcp = attributes(ulp.get(_ULP_INFO_MPTCP, b""), only=_OF_MPTCP)
        if _FLAGS not in mptcp:
            continue
        (flags,), (token,), (address_id,) = (
            _U32.unpack(mptcp[_FLAGS]),
            _U32.unpack(mptcp[_TOKEN_LOC]),
            _U8.unpack(mptcp[_ID_REM]),
        )
        if not flags & _FLAGS_CAPABLE_OR_JOIN:
            continue
        ends = Ends(PackedEndpoint(tcp.remote, tcp.remote_port), PackedEndpoint(tcp.local, tcp.local_port))
        stalled = tcp.timer == _TIMER_RETRANSMIT and tcp.retransmits >= _STALLED_RETRANSMITS
        by_client, by_proxy = bool(flags & _FLAG_BACKUP_BY_CLIENT), bool(flags & _FLAG_BACKUP_BY_PROXY)
        is_first = bool(flags & _FLAG_CAPABLE_BY_CLIENT)
        yield ends, ListedSubflow(Token(token), address_id, by_client, stalled, closed, by_proxy, is_first)


def _unsent(tcp: TcpSocket) -> int:
    """Bytes that have never been sent; a FIN counts as a byte."""
    info = tcp.attributes.get(INET_DIAG_INFO, b"")
    return int(_NOTSENT_BYTES.unpack_from(info)[0]) if len(info) >= _NOTSENT_BYTES.size else 0
