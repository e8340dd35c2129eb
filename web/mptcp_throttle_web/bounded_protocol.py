"""HTTP connections with bounds: seconds that one may wait for its client, bytes of a request head, and their number.

uvicorn bounds neither how long a client takes to send a request nor how long it takes to read an answer, and at a bound
on the number of connections it refuses everybody, so that idle ones keep all others out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from mptcp_throttle_web.connection_bounds import ConnectionBounds, reset

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

MAX_HEAD_BYTES: Final = 16384
CLIENT_SECONDS: Final = 5.0
# An event stream has data every second. The kernel holds some hundred kilobytes for a client that does not read.
_READ_SECONDS: Final = 20.0


class BoundedProtocol(H11Protocol):
    """A connection of uvicorn that is closed if its client keeps it waiting, or to make room for another one."""

    bounds: ClassVar[ConnectionBounds]

    @classmethod
    def for_listener(cls, most: int) -> type[BoundedProtocol]:
        """A protocol for one listener, with up to `most` connections: those of one keep nobody from another."""
        return type("BoundedProtocol", (cls,), {"bounds": ConnectionBounds(most)})

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._request_due: asyncio.TimerHandle | None = None
        self._reading_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit it, in place of another one if need be."""
        super().connection_made(transport)
        if self.bounds.admit(self):
            self._expect_request()

    def data_received(self, data: bytes) -> None:
        """A part of a request has come."""
        super().data_received(data)
        if self._is_answering():
            self._end_wait()

    def on_response_complete(self) -> None:
        """The next request may come, or has come already."""
        super().on_response_complete()
        if not self._is_answering():
            self._expect_request()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self.bounds.begin_unread(self)
        self._reading_due = self.loop.call_later(_READ_SECONDS, self.abort)

    def resume_writing(self) -> None:
        """The client reads."""
        super().resume_writing()
        self.bounds.end_unread(self)
        if self._reading_due is not None:
            self._reading_due.cancel()
            self._reading_due = None

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
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
