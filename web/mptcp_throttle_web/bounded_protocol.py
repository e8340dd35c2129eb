"""HTTP connections with bounds: on the wait for a client, on the bytes of a request head, and on their number.

uvicorn bounds neither how long a client takes to send a request nor how long it takes to read an answer. At its limit
of connections it refuses all new ones, so idle connections lock out every other client.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from mptcp_throttle_web.connection_bounds import ConnectionBounds, reset

MAX_HEAD_BYTES: Final = 16384
CLIENT_SECONDS: Final = 5.0
# An event stream has data every second. The kernel holds some hundred kilobytes for a client that does not read.
_READ_SECONDS: Final = 20.0


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
