"""JSON-RPC 2.0 over Unix sockets with jsonrpclib-pelix: the one way our processes talk to each other.

| socket | method | result |
|---|---|---|
| `sniffer.sock` | `status()` | counters, table sizes, capture drops |
| | `snapshot(after)` | `{epoch, revision, connections, next}`: the table, a few thousand at a time |
| | `changes(epoch, revision, timeout)` | `{epoch, revision, changes}` or `{resync: true}`; waits up to `timeout` s |
| `daemon.sock` | `status()` | networks with rates, kernel state, last errors |
| | `connections()` | every connection with the treatment of each subflow, and why |
| | `plan()` | the kernel operations that would be done now |
| | `set_rate(network, rule, rate, seconds)`, `reset_rate(network)` | the network's status, once in force |
| | `pause(seconds)`, `resume()` | `{pause}`, null or `{expires_at, seconds_left}`, once in force |
| | `reload()` | `{changes, dropped_overrides, problems, valid}`; with problems nothing has changed |

Connections are encoded by `mptcp_throttle.wire`.

A connection of a socket carries one request after the other (HTTP/1.1), or a single one if the client says so. Nobody
who is slow, silent or rude keeps others waiting: see `_Server`.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import io
import logging
import os
import socket
import socketserver
import struct
import sys
import threading
import time
from functools import wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import jsonrpclib
from jsonrpclib.config import Config as JsonRpcConfig
from jsonrpclib.jsonrpc import ProtocolError, ServerProxy, UnixTransport
from jsonrpclib.SimpleJSONRPCServer import SimpleJSONRPCServer

from mptcp_throttle.errors import UserError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from mptcp_throttle.config.schema import SocketGroup

Json = Any
"""What `json` can encode; checked where it is decoded."""

_log = logging.getLogger("mptcp-throttle")

# Python's is 5. The kernel takes the smaller of this and net.core.somaxconn, which is 4096.
_QUEUED_CONNECTIONS: Final = 128
# Each costs a thread, and one of the 1024 file descriptors that systemd allows.
_MAX_CONNECTIONS: Final = 64
_MAX_HEADER_BYTES: Final = 16384
_MAX_REQUEST_BYTES: Final = 65536
_PATIENCE_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 1.0
_MAX_QUOTED: Final = 200
# JSON-RPC 2.0, section 5.1, reserves -32768 to -32000; any other code belongs to the application.
_INVALID_REQUEST: Final = -32600
_REFUSED: Final = 1
_JSON_RPC: Final = JsonRpcConfig(use_jsonclass=False)


class RpcError(UserError):
    """The service did not answer, or answered that it will not."""


class _BoundedStream(io.RawIOBase):
    """What a connection sends, up to a number of bytes a request. http.server alone would take headers of 6.5 MB."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.expect_request()

    def expect_request(self) -> None:
        self._left = _MAX_HEADER_BYTES + _MAX_REQUEST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = self._connection.recv_into(buffer[: self._left])
        self._left -= count
        return count


class _RequestHandler(http.server.BaseHTTPRequestHandler):
    """Reads the requests of a connection. What is none is answered with a JSON-RPC error too, and is the last."""

    server: _Server
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._stream = _BoundedStream(self.connection)
        self.rfile = io.BufferedReader(self._stream)

    def handle_one_request(self) -> None:
        self._stream.expect_request()
        super().handle_one_request()

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            length = -1
        if self.path != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
        elif length < 0:
            self.send_error(HTTPStatus.LENGTH_REQUIRED)
        elif length > _MAX_REQUEST_BYTES:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        elif len(request := self.rfile.read(length)) < length:
            self.send_error(HTTPStatus.BAD_REQUEST, "Incomplete request")
        else:
            self._send(HTTPStatus.OK, None, self.server.answer(self.connection, request))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        text = (message or HTTPStatus(code).phrase)[:_MAX_QUOTED]
        _log.info("rpc: code %d, message %s", code, text)
        self.close_connection = True
        with contextlib.suppress(ConnectionError):
            self._send(code, text, _error(text))

    def _send(self, code: int, reason: str | None, answer: str) -> None:
        body = answer.encode()
        lines = [
            f"{self.protocol_version} {code:d} {HTTPStatus(code).phrase if reason is None else reason}",
            f"Content-Type: {_JSON_RPC.content_type}",
            *(["Connection: close"] if self.close_connection else []),
            f"Content-Length: {len(body)}",
        ]
        self.wfile.write(_message(lines, body))

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


class _Server(socketserver.ThreadingMixIn, SimpleJSONRPCServer):  # type: ignore[misc]
    """A thread for each connection, and a bound on their number.

    A connection waits for its client while it has not sent its whole request, or not taken its whole answer. Who keeps
    us waiting too long is dropped; so is, at the bound, who has kept us waiting longest.
    """

    daemon_threads = True
    request_queue_size = _QUEUED_CONNECTIONS

    def __init__(self, path: Path) -> None:
        # In the order of the times (time.monotonic) at which the waiting began.
        self._waiting: dict[socket.socket, float] = {}
        self._answering = 0
        self._changed = threading.Condition()
        super().__init__(
            str(path),
            requestHandler=_RequestHandler,
            address_family=socket.AF_UNIX,
            bind_and_activate=False,
            config=_JSON_RPC,
        )

    def verify_request(self, request: socket.socket, client_address: object) -> bool:  # noqa: ARG002
        with self._changed:
            if len(self._waiting) + self._answering >= _MAX_CONNECTIONS:
                if not self._waiting:
                    return False
                self._drop_first()
            self._waiting[request] = time.monotonic()
        return True

    def service_actions(self) -> None:
        patience_ended = time.monotonic() - _PATIENCE_SECONDS
        with self._changed:
            while self._waiting and next(iter(self._waiting.values())) < patience_ended:
                self._drop_first()

    def _drop_first(self) -> None:
        connection = next(iter(self._waiting))
        del self._waiting[connection]
        # Ends any recv and send of its thread, which then closes it.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def answer(self, connection: socket.socket, request: bytes) -> str:
        """Do what the request asks for. Raises ConnectionAbortedError if its connection has been dropped."""
        with self._changed:
            if self._waiting.pop(connection, None) is None:
                raise ConnectionAbortedError("dropped")
            self._answering += 1
        try:
            return str(self._marshaled_dispatch(request))
        except RecursionError:
            return _error("Nested too deeply")
        finally:
            with self._changed:
                self._answering -= 1
                self._waiting[connection] = time.monotonic()

    def _unmarshaled_dispatch(self, request: Json, dispatch_method: object = None) -> Json:
        # The answer to a batch may be a thousand times as long as one, and take as much longer.
        if isinstance(request, list):
            return jsonrpclib.Fault(_INVALID_REQUEST, "Batches are not served", config=_JSON_RPC).dump()
        return super()._unmarshaled_dispatch(request, dispatch_method)

    def close_request(self, request: socket.socket) -> None:
        with self._changed:
            self._waiting.pop(request, None)
            self._changed.notify_all()
        super().close_request(request)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        _log.info("rpc: request given up: %r", sys.exc_info()[1])

    def server_close(self) -> None:
        self.shutdown()
        super().server_close()
        with self._changed:
            while self._waiting:
                self._drop_first()
            self._changed.wait_for(lambda: not self._answering and not self._waiting, _CLOSE_SECONDS)


def _message(head: Iterable[str], body: bytes) -> bytes:
    """A message of HTTP in one piece: each piece wakes who waits for it."""
    return "\r\n".join((*head, "\r\n")).encode("latin-1", "replace") + body


def _error(message: str) -> str:
    return str(jsonrpclib.Fault(_INVALID_REQUEST, message, config=_JSON_RPC).response())


class RpcServer:
    """Serves `methods` on a Unix socket that only its owner and `group` may use.

    A method that raises UserError answers with that one line; nothing else of an exception reaches the caller.
    The caller must hold the instance lock of the service: a socket file found at `path` is taken for a leftover.
    """

    def __init__(self, path: Path, methods: Mapping[str, Callable[..., Json]], group: SocketGroup | None) -> None:
        self._path = path
        self._server = _Server(path)
        for name, method in methods.items():
            self._server.register_function(_answering_refusals(method), name)
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
            self._server.server_bind()
            # Before listen() nobody can connect, so nobody meets the mode that the umask gave.
            self._path.chmod(0o660)
            if group is not None:
                os.chown(self._path, -1, group.gid)
        except OSError as error:
            raise UserError(f"{self._path}: cannot be created: {error.strerror or error}", os.EX_NOPERM) from error

    def close(self) -> None:
        """Stop answering and remove the socket. Methods that wait must be told to return first."""
        self._server.server_close()
        self._thread.join()
        self._path.unlink(missing_ok=True)


def _answering_refusals(method: Callable[..., Json]) -> Callable[..., Json]:
    @wraps(method)
    def answer(*args: Json, **kwargs: Json) -> Json:
        try:
            return method(*args, **kwargs)
        except UserError as error:
            return jsonrpclib.Fault(_REFUSED, str(error), config=_JSON_RPC)

    return answer


class _TimedSocket(socket.socket):
    """A Unix socket; whatever waits for it raises TimeoutError at `deadline` (time.monotonic)."""

    def __init__(self) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self.deadline = 0.0

    def _left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def connect(self, address: str) -> None:  # type: ignore[override]
        # With Python's timeout a connect would not wait for room in the server's queue, but fail with EAGAIN.
        microseconds = int(self._left() * 1e6) + 1
        timeval = struct.pack("ll", *divmod(microseconds, 1_000_000))
        self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        super().connect(address)

    def sendall(self, *arguments: Any) -> None:  # noqa: ANN401
        self.settimeout(self._left())
        super().sendall(*arguments)

    def recv_into(self, *arguments: Any) -> int:  # noqa: ANN401
        self.settimeout(self._left())
        return super().recv_into(*arguments)


class _Transport(UnixTransport):  # type: ignore[misc]
    """pelix offers no timeout: a service that hangs would hang its callers.

    With `keep`, the connection is kept for the next call, as long as the service keeps it.
    """

    def __init__(self, path: Path, timeout: float, *, keep: bool) -> None:
        super().__init__(_JSON_RPC)
        self._path = str(path)
        self._timeout = timeout
        self._keep = keep
        self._current: _TimedSocket | None = None
        self._interrupted = False

    def request(self, host: str, handler: str, request_body: str, verbose: bool = False) -> str:  # noqa: ARG002
        deadline = time.monotonic() + self._timeout
        try:
            return self._exchange(handler, request_body, deadline)
        except ConnectionError:
            # A service that cannot serve everybody drops some unheard; and one that was idle, whenever it likes.
            return self._exchange(handler, request_body, deadline)

    def _exchange(self, handler: str, request_body: str, deadline: float) -> str:
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.close)
            connection = self._connected(deadline)
            # A service that refuses a request need not have read it.
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(self._request(handler, request_body.encode()))
            with http.client.HTTPResponse(connection, method="POST") as response:
                response.begin()
                answer = response.read().decode()
                if self._keep and not response.will_close:
                    on_failure.pop_all()
        return answer

    def _request(self, handler: str, body: bytes) -> bytes:
        lines = (
            f"POST {handler} HTTP/1.1",
            "Host: localhost",
            f"Connection: {'keep-alive' if self._keep else 'close'}",
            f"Content-Type: {_JSON_RPC.content_type}",
            f"Content-Length: {len(body)}",
        )
        return _message(lines, body)

    def _connected(self, deadline: float) -> _TimedSocket:
        connection = self._current
        if connection is None:
            connection = self._current = _TimedSocket()
            connection.deadline = deadline
            connection.connect(self._path)
        if self._interrupted:
            raise ConnectionAbortedError("interrupted")
        connection.deadline = deadline
        return connection

    def close(self) -> None:
        if self._current is not None:
            self._current.close()
            self._current = None

    def interrupt(self) -> None:
        self._interrupted = True
        current = self._current
        if current is not None:
            with contextlib.suppress(OSError):
                current.shutdown(socket.SHUT_RDWR)


class RpcClient:
    """Calls a service. `timeout` is in seconds and bounds a call. Not for concurrent use.

    With `keep`, one connection serves for many calls: for those who call again and again.
    """

    def __init__(self, path: Path, timeout: float = 5.0, *, keep: bool = False) -> None:
        self._path = path
        self._timeout = timeout
        self._transport = _Transport(path, timeout, keep=keep)
        self._proxy = ServerProxy(f"unix+http://.{path.absolute()}", transport=self._transport, config=_JSON_RPC)

    def call(self, method: str, *params: Json) -> Json:
        """The result of `method`. Raises RpcError if it is refused or does not come."""
        try:
            return getattr(self._proxy, method)(*params)
        except ProtocolError as error:
            detail = error.args[0]
            message = str(detail[1]) if isinstance(detail, tuple) else str(detail)
            raise RpcError(" ".join(message.split())) from error
        except PermissionError as error:
            raise RpcError(f"{self._path}: permission denied; its group may use it", os.EX_NOPERM) from error
        except (TimeoutError, BlockingIOError) as error:
            raise RpcError(f"{self._path}: no answer in {self._timeout:g} s", os.EX_UNAVAILABLE) from error
        except OSError as error:
            raise RpcError(f"{self._path}: no service answers ({error})", os.EX_UNAVAILABLE) from error
        except Exception as error:
            # There is no end to what http.client, json and pelix raise over an answer that is none.
            problem = f"{self._path}: the answer is not JSON-RPC: {shown(str(error))}"
            raise RpcError(problem, os.EX_UNAVAILABLE) from error

    def close(self) -> None:
        """End the connection that is kept, if there is one."""
        self._transport.close()

    def interrupt(self) -> None:
        """End a call that is waiting in another thread, and all later ones: they raise RpcError."""
        self._transport.interrupt()


logging.getLogger("jsonrpclib").setLevel(logging.CRITICAL)
