"""The server end: pelix's JSON-RPC server with bounds on what a client can take (see `mptcp_throttle.rpc`)."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import socketserver
import sys
import threading
import time
from functools import wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import jsonrpclib
from jsonrpclib.SimpleJSONRPCServer import SimpleJSONRPCRequestHandler, SimpleJSONRPCServer

from mptcp_throttle.errors import UserError
from mptcp_throttle.linux.unix_peer import peer_of
from mptcp_throttle.logs import about
from mptcp_throttle.rpc.wire import JSON_RPC, Json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from mptcp_throttle.config.schema import SocketGroup

_log = logging.getLogger("mptcp-throttle")
_ABOUT: Final = about("clients of the socket")

# Python's is 5. The kernel takes the smaller of this and net.core.somaxconn, which is 4096.
_QUEUED_CONNECTIONS: Final = 128
# Each costs a thread, and one of the 1024 file descriptors that systemd allows.
_MAX_CONNECTIONS: Final = 64
_MAX_HEADER_BYTES: Final = 16384
_MAX_REQUEST_BYTES: Final = 65536
_CLIENT_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 1.0
_MAX_QUOTED: Final = 200
# JSON-RPC 2.0, section 5.1, reserves -32768 to -32000; any other code belongs to the application.
_INVALID_REQUEST: Final = -32600
_REFUSED: Final = 1


class _BoundedReader:
    """The stream of a connection, which ends after a number of bytes per request."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.close = stream.close
        self.expect_request()

    def expect_request(self) -> None:
        self._left = _MAX_HEADER_BYTES + _MAX_REQUEST_BYTES

    def readline(self, limit: int) -> bytes:
        return self._counted(self._stream.readline(min(limit, self._left)))

    def read(self, size: int) -> bytes:
        return self._counted(self._stream.read(min(size, self._left)))

    def _counted(self, data: bytes) -> bytes:
        self._left -= len(data)
        return data


class _Peer(threading.local):
    """The client of the connection that a thread serves."""

    uid: int | None = None


_peer: Final = _Peer()


def peer_uid() -> int | None:
    """The user id of the client whose call this thread answers, None in another thread."""
    return _peer.uid


class _RequestHandler(SimpleJSONRPCRequestHandler):  # type: ignore[misc]
    """The requests of one connection. Errors of HTTP are answered with a JSON-RPC error too, and end the connection."""

    server: _Server
    rfile: _BoundedReader
    protocol_version = "HTTP/1.1"
    rpc_paths = ("/",)
    max_request_size = _MAX_REQUEST_BYTES

    def setup(self) -> None:
        super().setup()
        _peer.uid = peer_of(self.connection).uid
        self.rfile = _BoundedReader(self.rfile)  # type: ignore[arg-type]

    def handle_one_request(self) -> None:
        self.rfile.expect_request()
        super().handle_one_request()

    def decode_request_content(self, data: bytes) -> bytes | None:
        # pelix calls this with the body that it has read, and executes the request that this returns.
        if len(data) < int(self.headers["Content-Length"]):
            self.send_error(HTTPStatus.BAD_REQUEST, "Incomplete request")
            return None
        self.server.begin_answer(self.connection)
        return data

    def send_response(self, code: int, message: str | None = None) -> None:
        self.server.end_answer(self.connection)
        # Without the headers Server and Date, which cost a tenth of a call.
        self.send_response_only(code, message)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        self._send_fault_response(code, (message or HTTPStatus(code).phrase)[:_MAX_QUOTED], JSON_RPC)

    def report_404(self) -> None:
        self.send_error(HTTPStatus.NOT_FOUND)

    def _send_fault_response(self, status: int, message: str, config: object) -> None:
        _log.info("rpc: request refused: %d %s", status, message, extra=_ABOUT)
        super()._send_fault_response(status, message, config)


class _Server(socketserver.ThreadingMixIn, SimpleJSONRPCServer):  # type: ignore[misc]
    """One thread per connection, and a bound on their number.

    A connection waits for its client until the request is complete, and again until the answer has been taken. After
    `_CLIENT_SECONDS` of waiting it is closed; at the bound, a new connection closes the one that has waited longest.
    """

    daemon_threads = True
    request_queue_size = _QUEUED_CONNECTIONS

    def __init__(self, path: Path) -> None:
        # The time (time.monotonic) since which each connection waits, the longest wait first.
        self._waiting: dict[socket.socket, float] = {}
        self._answering: set[socket.socket] = set()
        self._changed = threading.Condition()
        super().__init__(
            str(path),
            requestHandler=_RequestHandler,
            address_family=socket.AF_UNIX,
            bind_and_activate=False,
            config=JSON_RPC,
        )

    def verify_request(self, request: socket.socket, client_address: object) -> bool:  # noqa: ARG002
        with self._changed:
            if len(self._waiting) + len(self._answering) >= _MAX_CONNECTIONS:
                if not self._waiting:
                    return False
                self._drop_longest_waiting()
            self._waiting[request] = time.monotonic()
        return True

    def service_actions(self) -> None:
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

    def _unmarshaled_dispatch(self, request: Json, dispatch_method: object = None) -> Json:
        # A batch of 64 KiB holds a thousand requests, each with an answer as long and as slow as that of one request.
        if isinstance(request, list):
            return jsonrpclib.Fault(_INVALID_REQUEST, "Batches are not served", config=JSON_RPC).dump()
        return super()._unmarshaled_dispatch(request, dispatch_method)

    def close_request(self, request: socket.socket) -> None:
        with self._changed:
            self._waiting.pop(request, None)
            self._answering.discard(request)
            self._changed.notify_all()
        super().close_request(request)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        error = sys.exc_info()[1]
        # Clients may leave before the answer, and slow ones are dropped: that is normal.
        level = logging.DEBUG if isinstance(error, ConnectionError) else logging.INFO
        _log.log(level, "rpc: connection ended: %r", error, extra=_ABOUT)

    def server_close(self) -> None:
        self.shutdown()
        super().server_close()
        with self._changed:
            while self._waiting:
                self._drop_longest_waiting()
            self._changed.wait_for(lambda: not self._answering and not self._waiting, _CLOSE_SECONDS)


class RpcServer:
    """Serves `methods` on a Unix socket that only its owner and `group` may use.

    A method that raises UserError is answered with an error of that one line; of other exceptions the caller learns
    only that there was one. The caller must hold the instance lock of the service: a socket file found at `path` is
    removed as a leftover. Raises UserError if the socket cannot be made.
    """

    def __init__(self, path: Path, methods: Mapping[str, Callable[..., Json]], group: SocketGroup | None) -> None:
        self._path = path
        self._server = _Server(path)
        for name, method in methods.items():
            self._server.register_function(_with_faults(method), name)
        try:
            self._bind(group)
        except UserError:
            self._server.socket.close()
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self._server.server_activate()
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="rpc", daemon=True)
        self._thread.start()

    def _bind(self, group: SocketGroup | None) -> None:
        try:
            # pelix never unlinks its socket file and cannot bind while one exists.
            self._path.unlink(missing_ok=True)
            # Whoever may write to the directory can replace the socket: nothing follows a symbolic link there.
            umask = os.umask(0o117)
            try:
                self._server.server_bind()
            finally:
                os.umask(umask)
            # Nobody can connect before listen(), so the group that the process gave is never in use.
            if group is not None:
                os.chown(self._path, -1, group.gid, follow_symlinks=False)
        except OSError as error:
            raise UserError(f"{self._path}: cannot be created: {error.strerror or error}", os.EX_NOPERM) from error

    def close(self) -> None:
        """Stop serving and remove the socket file. Tell methods that wait to return first."""
        self._server.server_close()
        self._thread.join()
        self._path.unlink(missing_ok=True)


def _with_faults(method: Callable[..., Json]) -> Callable[..., Json]:
    @wraps(method)
    def answer(*args: Json, **kwargs: Json) -> Json:
        try:
            return method(*args, **kwargs)
        except UserError as error:
            return jsonrpclib.Fault(_REFUSED, str(error), config=JSON_RPC)

    return answer


# It logs what clients send, and every method's exception with its traceback.
logging.getLogger("jsonrpclib").setLevel(logging.CRITICAL)
