"""Connections of a listener with bounds: on the wait for a client, on the bytes of a request head, and on their number.

uvicorn bounds neither how long a client takes to send a request nor how long it takes to read an answer. At its limit
of connections it refuses all new ones, so idle connections lock out every other client. asyncio's servers, which
uvicorn uses, report a connection only after its TLS handshake, for which they wait up to 60 s.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import ssl

    from uvicorn.config import Config
    from uvicorn.server import ServerState

_NO_LINGER: Final = struct.pack("ii", 1, 0)
MAX_HEAD_BYTES: Final = 16384
CLIENT_SECONDS: Final = 5.0
# An event stream has data every second. The kernel holds some hundred kilobytes for a client that does not read.
_READ_SECONDS: Final = 20.0


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


class BoundedProtocol(H11Protocol):
    """A connection of uvicorn that is closed if its client keeps it waiting, or to make room for a new connection."""

    bounds: ClassVar[ConnectionBounds]
    _request_due: asyncio.TimerHandle | None = None
    _reading_due: asyncio.TimerHandle | None = None

    @classmethod
    def for_listener(cls, most: int) -> type[BoundedProtocol]:
        """A protocol for one listener, with up to `most` connections, whatever other listeners have."""
        return type("BoundedProtocol", (cls,), {"bounds": ConnectionBounds(most)})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit it, if need be in place of an older connection."""
        super().connection_made(transport)
        if self.bounds.admit(self):
            self._expect_request()

    def data_received(self, data: bytes) -> None:
        """A part of a request has arrived."""
        super().data_received(data)
        if self._is_answering():
            self._end_wait()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it has arrived already."""
        super().on_response_complete()
        if not self._is_answering():
            self._expect_request()

    def pause_writing(self) -> None:
        """The client has stopped reading."""
        super().pause_writing()
        self.bounds.begin_unread(self)
        self._reading_due = self.loop.call_later(_READ_SECONDS, self.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self.bounds.end_unread(self)
        if self._reading_due is not None:
            self._reading_due.cancel()
            self._reading_due = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._end_wait()
        self.bounds.leave(self)
        super().connection_lost(exc)
        if self._reading_due is not None:
            self._reading_due.cancel()

    def abort(self) -> None:
        """Close it at once, whatever its client has not read."""
        self.bounds.leave(self)
        reset(self.transport)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_request(self) -> None:
        self._end_wait()
        self.bounds.begin_wait(self)
        self._request_due = self.loop.call_later(CLIENT_SECONDS, self.abort)

    def _end_wait(self) -> None:
        self.bounds.end_wait(self)
        if self._request_due is not None:
            self._request_due.cancel()
            self._request_due = None


class TlsHandshake(asyncio.Protocol):
    """A connection from its accept until its handshake is complete; then `_then` is its protocol."""

    _then: ClassVar[type[BoundedProtocol]]
    _context: ClassVar[ssl.SSLContext]

    @classmethod
    def before(cls, then: type[BoundedProtocol], context: ssl.SSLContext) -> type[TlsHandshake]:
        """A protocol for the listener of `then`, within the same bounds."""
        return type("TlsHandshake", (cls,), {"_then": then, "_context": context})

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._make = partial(self._then, config, server_state, app_state, _loop)
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit it, if need be in place of an older connection."""
        self._transport = transport
        if self._then.bounds.admit(self):
            self._then.bounds.begin_wait(self)
            self._task = asyncio.get_running_loop().create_task(self._shake_hands(transport))
            # A task that is cancelled before it has begun runs none of its lines.
            self._task.add_done_callback(lambda _: self._then.bounds.leave(self))

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        try:
            encrypted = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=CLIENT_SECONDS,
                ssl_shutdown_timeout=CLIENT_SECONDS,
            )
        except OSError:  # also ssl.SSLError and TimeoutError
            transport.abort()
            return
        if encrypted is None:  # the connection was lost meanwhile
            return
        self._then.bounds.leave(self)
        protocol = self._make()
        encrypted.set_protocol(protocol)
        protocol.connection_made(encrypted)
        if self._received:
            protocol.data_received(self._received)

    def data_received(self, data: bytes) -> None:
        """Keep what follows the handshake: at most one read, until `_shake_hands` goes on."""
        self._received += data

    def connection_lost(self, _: Exception | None) -> None:
        """The connection has ended."""
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            reset(self._transport)
