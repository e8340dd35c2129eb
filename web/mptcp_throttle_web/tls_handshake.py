"""TLS handshakes within the bounds of their listener.

asyncio's servers, which uvicorn uses, report a connection only after its handshake, for which they wait up to 60 s.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from mptcp_throttle_web.bounded_protocol import CLIENT_SECONDS, BoundedProtocol
from mptcp_throttle_web.connection_bounds import reset

if TYPE_CHECKING:
    import ssl

    from uvicorn.config import Config
    from uvicorn.server import ServerState


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
