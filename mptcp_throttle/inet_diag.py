"""TCP sockets as the kernel lists them (inet_diag, as ss(8) uses it), with the attributes that a caller wants."""

from __future__ import annotations

from socket import AF_INET, AF_INET6
from typing import TYPE_CHECKING, Final

from pyroute2 import DiagSocket
from pyroute2.netlink.diag import MarshalDiag, inet_diag_msg

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXT_INFO: Final = 1 << 1  # INET_DIAG_INFO - 1; without it the kernel leaves out INET_DIAG_ULP_INFO too


def list_tcp(message: type[inet_diag_msg], ports: Sequence[int], state: int) -> list[inet_diag_msg]:
    """The sockets on these local ports in that state (SS_...), each as a `message`.

    Raises OSError or NetlinkError.
    """
    marshal = MarshalDiag()
    marshal.msg_map = {AF_INET: message, AF_INET6: message}
    with DiagSocket() as diag:
        diag.set_marshal(marshal)
        diag.bind()
        return [
            one
            for family in (AF_INET, AF_INET6)
            for port in ports
            for one in diag.get_sock_stats(family=family, states=1 << state, extensions=_EXT_INFO, sport=port)
        ]
