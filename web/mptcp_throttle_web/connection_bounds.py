"""How many connections a listener has at a time, and which one gives way to a new one."""

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
    """What can be closed to make room."""

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
    """The connections of one listener, `most` of them, from their accept to their end.

    Of those that wait for their client's handshake or request, and of those whose client does not read, the longest
    wait is first.
    """

    most: int
    _open: set[Connection] = field(default_factory=set)
    _waiting: dict[Connection, None] = field(default_factory=dict)
    _unread: dict[Connection, None] = field(default_factory=dict)

    def admit(self, new: Connection) -> bool:
        """Whether there is room. At the bound, the one that has waited longest gives way, else the one that has been
        unread for longest, else the new one: it is closed."""
        if len(self._open) >= self.most:
            gives_way = next(iter((*self._waiting, *self._unread)), new)
            self.leave(gives_way)
            gives_way.abort()
            if gives_way is new:
                return False
        self._open.add(new)
        return True

    def leave(self, one: Connection) -> None:
        """It has ended, or is about to."""
        self._open.discard(one)
        self._waiting.pop(one, None)
        self._unread.pop(one, None)

    def begin_wait(self, one: Connection) -> None:
        """It waits for its client to send."""
        self._waiting.pop(one, None)
        self._waiting[one] = None

    def end_wait(self, one: Connection) -> None:
        """Its client has sent."""
        self._waiting.pop(one, None)

    def begin_unread(self, one: Connection) -> None:
        """Its client does not read."""
        self._unread[one] = None

    def end_unread(self, one: Connection) -> None:
        """Its client reads."""
        self._unread.pop(one, None)
