"""A server with bounds on what its clients can take: connections, seconds of waiting, and bytes of a request."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from mptcp_throttle.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

    from mptcp_throttle.config.schema import SocketGroup

# Python's is 5. The kernel takes the smaller of this and net.core.somaxconn, which is 4096.
_QUEUED_CONNECTIONS: Final = 128
# Each costs a thread, and one of the 1024 file descriptors that systemd allows.
_MAX_CONNECTIONS: Final = 64
_CLIENT_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 1.0
# Between looks for connections that have waited too long.
_ACTION_SECONDS: Final = 1.0


class BoundedReader:
    """The stream of a connection, which ends after `limit` bytes per request."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self.close = stream.close
        self.expect_request()

    @property
    def closed(self) -> bool:
        """Whether the stream is closed."""
        return self._stream.closed

    def expect_request(self) -> None:
        """The next bytes belong to another request."""
        self._left = self._limit

    def readline(self, limit: int) -> bytes:
        """As `readline` of the stream."""
        return self._counted(self._stream.readline(min(limit, self._left)))

    def read(self, size: int) -> bytes:
        """As `read` of the stream."""
        return self._counted(self._stream.read(min(size, self._left)))

    def _counted(self, data: bytes) -> bytes:
        self._left -= len(data)
        return data


class BoundedServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """One thread per connection, and a bound on their number. The handler of a connection calls `begin_answer` and
    `end_answer`.

    A connection waits for its client until the request is complete, and again until the answer has been taken. After
    `_CLIENT_SECONDS` of waiting it is closed; at the bound, a new connection closes the one that has waited longest.
    """

    daemon_threads = True
    request_queue_size = _QUEUED_CONNECTIONS

    def __init__(self, *arguments: object, **options: object) -> None:
        # The time (time.monotonic) since which each connection waits, the longest wait first.
        self._waiting: dict[socket.socket, float] = {}
        self._answering: set[socket.socket] = set()
        self._changed = threading.Condition()
        super().__init__(*arguments, **options)  # type: ignore[arg-type]

    def verify_request(self, request: socket.socket, client_address: object) -> bool:  # type: ignore[override]  # noqa: ARG002
        """Admit a connection; at the bound, in place of the connection that has waited longest."""
        with self._changed:
            if len(self._waiting) + len(self._answering) >= _MAX_CONNECTIONS:
                if not self._waiting:
                    return False
                self._drop_longest_waiting()
            self._waiting[request] = time.monotonic()
        return True

    def service_actions(self) -> None:
        """Close the connections that have waited too long."""
        limit = time.monotonic() - _CLIENT_SECONDS
        with self._changed:
            while self._waiting and next(iter(self._waiting.values())) < limit:
                self._drop_longest_waiting()

    def _drop_longest_waiting(self) -> None:
        connection = next(iter(self._waiting))
        del self._waiting[connection]
        # Ends a blocking recv or send of the connection's thread, which then closes the socket.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def begin_answer(self, connection: socket.socket) -> None:
        """The request is complete. Raises ConnectionAbortedError if its connection has been dropped."""
        with self._changed:
            if self._waiting.pop(connection, None) is None:
                raise ConnectionAbortedError
            self._answering.add(connection)

    def end_answer(self, connection: socket.socket) -> None:
        """The answer, if there was a request, is ready to be sent."""
        with self._changed:
            if connection in self._answering:
                self._answering.remove(connection)
                self._waiting[connection] = time.monotonic()

    def close_request(self, request: socket.socket) -> None:  # type: ignore[override]
        """The connection has ended."""
        with self._changed:
            self._waiting.pop(request, None)
            self._answering.discard(request)
            self._changed.notify_all()
        super().close_request(request)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """Without a traceback: clients can cause errors."""
        self.note_error(sys.exc_info()[1])

    def note_error(self, error: BaseException | None) -> None:
        """A connection has ended with this error."""

    def serve(self) -> None:
        """Serve until `server_close`."""
        self.serve_forever(_ACTION_SECONDS)

    def server_close(self) -> None:
        """Stop serving, and wait a moment for the connections to end."""
        # Ends the wait for the next connection.
        self.socket.shutdown(socket.SHUT_RDWR)
        self.shutdown()
        super().server_close()
        with self._changed:
            while self._waiting:
                self._drop_longest_waiting()
            self._changed.wait_for(lambda: not self._answering and not self._waiting, _CLOSE_SECONDS)


def bind_unix_socket(bind: Callable[[], None], path: Path, group: SocketGroup | None) -> None:
    """Let `bind` make the Unix socket `path`, which only its owner and `group` may use; a leftover is removed.

    Raises UserError if the socket cannot be made.
    """
    try:
        # bind() fails while a socket file exists.
        path.unlink(missing_ok=True)
        # A user who may write to the directory can replace the socket: nothing follows a symbolic link there.
        umask = os.umask(0o117)
        try:
            bind()
        finally:
            os.umask(umask)
        # No client can connect before listen(), so the group that the process gave is never in use.
        if group is not None and path.lstat().st_gid != group.gid:
            os.chown(path, -1, group.gid, follow_symlinks=False)
    except OSError as error:
        raise UserError(f"{path}: cannot be created: {error.strerror or error}", os.EX_NOPERM) from error
