"""How many connections a listener has at a time, and which of them is closed to make room."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio

_NO_LINGER: Final = struct.pack("ii", 1, 0)


class Connection(Protocol):
    """A connection that can be closed to make room."""

    def abort(self) -> None:
        """Close it at once."""


def reset(transport: asyncio.WriteTransport) -> None:
    """Close at once, and let the kernel drop what the client has not read: it would keep it for many minutes."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        with suppress(OSError):  # it has ended already, which its protocol learns a moment later
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


@dataclass(slots=True)
class ConnectionBounds:
    """Up to `most` connections of a listener, from their accept to their end.

    `_waiting`: for a handshake or request of their client; `_unread`: their client does not read. The longest is first.
    """

    most: int
    _open: set[Connection] = field(default_factory=set)
    _waiting: dict[Connection, None] = field(default_factory=dict)
    _unread: dict[Connection, None] = field(default_factory=dict)

    def admit(self, new: Connection) -> bool:
        """Whether there is room. At the bound, the connection that has waited longest is closed, else the longest
        unread one, else the new one."""
        if len(self._open) >= self.most:
            gives_way = next(iter((*self._waiting, *self._unread)), new)
            self.leave(gives_way)
            gives_way.abort()
            if gives_way is new:
                return False
        self._open.add(new)
        return True

    def leave(self, connection: Connection) -> None:
        """The connection has ended or is about to."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)
        self._unread.pop(connection, None)

    def begin_wait(self, connection: Connection) -> None:
        """The connection waits for its client to send."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = None

    def end_wait(self, connection: Connection) -> None:
        """The client has sent."""
        self._waiting.pop(connection, None)

    def begin_unread(self, connection: Connection) -> None:
        """The client does not read."""
        self._unread[connection] = None

    def end_unread(self, connection: Connection) -> None:
        """The client reads again."""
        self._unread.pop(connection, None)
