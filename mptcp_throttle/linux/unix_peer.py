"""Who is at the other end of a Unix socket."""

from __future__ import annotations

import socket
from struct import Struct
from typing import Final, NamedTuple

_UCRED: Final = Struct("iII")  # struct ucred, include/linux/socket.h


class Peer(NamedTuple):
    """The process, user and group that have opened, or listen on, the other end."""

    pid: int
    uid: int
    gid: int


def peer_of(connected: socket.socket) -> Peer:
    """The peer of a connected Unix socket. Raises OSError."""
    return Peer(*_UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))
