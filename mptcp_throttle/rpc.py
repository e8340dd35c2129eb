"""JSON-RPC 2.0 over Unix sockets with jsonrpclib-pelix: the one way our processes talk to each other.

| socket | method | result |
|---|---|---|
| `sniffer.sock` | `status()` | counters, table sizes, capture drops |
| | `snapshot()` | `{epoch, revision, connections}` |
| | `changes(epoch, revision, timeout)` | `{epoch, revision, changes}` or `{resync: true}`; waits up to `timeout` s |
| `daemon.sock` | `status()` | networks with rates, kernel state, last errors |
| | `connections()` | every connection with the treatment of each subflow, and why |
| | `plan()` | the kernel operations that would be done now |
| | `set_rate(network, rule, rate, seconds)`, `reset_rate(network)` | the overrides in force |

Connections are encoded by `mptcp_throttle.wire`.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import socket
import struct
import sys
import threading
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import jsonrpclib
from jsonrpclib.config import Config as JsonRpcConfig
from jsonrpclib.jsonrpc import ProtocolError, ServerProxy, TransportError, UnixHTTPConnection, UnixTransport
from jsonrpclib.SimpleJSONRPCServer import PooledJSONRPCServer, SimpleJSONRPCRequestHandler

from mptcp_throttle.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from mptcp_throttle.config import SocketGroup

Json = Any
"""What `json` can encode; checked where it is decoded."""

_log = logging.getLogger("mptcp-throttle")

# Python's is 5. The kernel takes the smaller of this and net.core.somaxconn, which is 4096.
_QUEUED_CONNECTIONS: Final = 128
_MAX_REQUEST_BYTES: Final = 65536
_READ_TIMEOUT_SECONDS: Final = 5.0
# JSON-RPC 2.0 reserves -32768 to -32000; any other code belongs to the application.
_REFUSED: Final = 1
_JSON_RPC: Final = JsonRpcConfig(use_jsonclass=False)


class RpcError(UserError):
    """The service did not answer, or answered that it will not."""


class _RequestHandler(SimpleJSONRPCRequestHandler):  # type: ignore[misc]
    max_request_size = _MAX_REQUEST_BYTES
    timeout = _READ_TIMEOUT_SECONDS

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        # The inherited one names the peer, and a peer on a Unix socket has no address.
        _log.info("rpc: " + format, *args)


class _Server(PooledJSONRPCServer):  # type: ignore[misc]
    request_queue_size = _QUEUED_CONNECTIONS

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        _log.info("rpc: request given up: %r", sys.exc_info()[1])


class RpcServer:
    """Serves `methods` on a Unix socket that only its owner and `group` may use.

    A method that raises UserError answers with that one line; nothing else of an exception reaches the caller.
    The caller must hold the instance lock of the service: a socket file found at `path` is taken for a leftover.
    """

    def __init__(self, path: Path, methods: Mapping[str, Callable[..., Json]], group: SocketGroup | None) -> None:
        self._path = path
        self._server = _Server(
            str(path),
            requestHandler=_RequestHandler,
            address_family=socket.AF_UNIX,
            bind_and_activate=False,
            config=_JSON_RPC,
        )
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


class _TimedConnection(UnixHTTPConnection):  # type: ignore[misc]
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # With Python's timeout a connect would not wait for room in the server's queue, but fail with EAGAIN.
        seconds, fraction = divmod(self.timeout, 1)
        timeval = struct.pack("ll", int(seconds), int(fraction * 1e6))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        self.sock.connect(self.path)
        self.sock.settimeout(self.timeout)


class _TimedTransport(UnixTransport):  # type: ignore[misc]
    """pelix offers no timeout: a service that hangs would hang its callers."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__(_JSON_RPC)
        self._unix_path = str(path)
        self.timeout = timeout
        self._current: _TimedConnection | None = None
        self._interrupted = False

    def make_connection(self, host: str) -> http.client.HTTPConnection:
        self._extra_headers: list[tuple[str, str]] = []
        if self._interrupted:
            raise ConnectionAbortedError("interrupted")
        self._current = _TimedConnection(self._unix_path, timeout=self.timeout)
        self._connection = host, self._current
        return self._current

    def interrupt(self) -> None:
        # xmlrpc.client repeats a request whose connection ends without an answer; the flag ends the repetition.
        self._interrupted = True
        if self._current is not None and self._current.sock is not None:
            with contextlib.suppress(OSError):
                self._current.sock.shutdown(socket.SHUT_RDWR)


class RpcClient:
    """Calls a service. `timeout` is in seconds and bounds each wait for the socket. Not for concurrent use."""

    def __init__(self, path: Path, timeout: float = 5.0) -> None:
        self._path = path
        self._transport = _TimedTransport(path, timeout)
        self._proxy = ServerProxy(f"unix+http://.{path.absolute()}", transport=self._transport, config=_JSON_RPC)

    def call(self, method: str, *params: Json) -> Json:
        """The result of `method`. Raises RpcError if it is refused or does not come."""
        try:
            return getattr(self._proxy, method)(*params)
        except TransportError as error:
            raise RpcError(f"{self._path}: {error.errmsg}", os.EX_UNAVAILABLE) from error
        except ProtocolError as error:
            detail = error.args[0]
            raise RpcError(str(detail[1]) if isinstance(detail, tuple) else str(detail)) from error
        except PermissionError as error:
            raise RpcError(f"{self._path}: permission denied; its group may use it", os.EX_NOPERM) from error
        except (TimeoutError, BlockingIOError) as error:
            raise RpcError(f"{self._path}: no answer in {self._transport.timeout:g} s", os.EX_UNAVAILABLE) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RpcError(f"{self._path}: no service answers ({error})", os.EX_UNAVAILABLE) from error

    def interrupt(self) -> None:
        """End a call that is waiting in another thread, and all later ones: they raise RpcError."""
        self._transport.interrupt()


logging.getLogger("jsonrpclib").setLevel(logging.CRITICAL)
