"""The server end: pelix's JSON-RPC server with bounds on what a client can take (see `mptcp_throttle.rpc`)."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from functools import wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import jsonrpclib
from jsonrpclib.SimpleJSONRPCServer import SimpleJSONRPCRequestHandler, SimpleJSONRPCServer

from mptcp_throttle.bounded_server import BoundedReader, BoundedServer, bind_unix_socket
from mptcp_throttle.errors import NotYetAppliedError, UserError
from mptcp_throttle.linux.unix_peer import peer_of
from mptcp_throttle.logs import about
from mptcp_throttle.rpc.wire import JSON_RPC, NOT_YET_APPLIED, REFUSED, Json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from mptcp_throttle.config.schema import SocketGroup

_log = logging.getLogger("mptcp-throttle")
_ABOUT: Final = about("clients of the socket")

_MAX_HEADER_BYTES: Final = 16384
_MAX_REQUEST_BYTES: Final = 65536
_MAX_QUOTED: Final = 200
_INVALID_REQUEST: Final = -32600


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
    rfile: BoundedReader
    protocol_version = "HTTP/1.1"
    rpc_paths = ("/",)
    max_request_size = _MAX_REQUEST_BYTES

    def setup(self) -> None:
        super().setup()
        _peer.uid = peer_of(self.connection).uid
        self.rfile = BoundedReader(self.rfile, _MAX_HEADER_BYTES + _MAX_REQUEST_BYTES)  # type: ignore[arg-type]

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


class _Server(BoundedServer, SimpleJSONRPCServer):  # type: ignore[misc]
    """JSON-RPC within the bounds of BoundedServer, without batches."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            str(path),
            requestHandler=_RequestHandler,
            address_family=socket.AF_UNIX,
            bind_and_activate=False,
            config=JSON_RPC,
        )

    def _unmarshaled_dispatch(self, request: Json, dispatch_method: object = None) -> Json:
        # A batch of 64 KiB holds a thousand requests, each with an answer as long and as slow as that of one request.
        if isinstance(request, list):
            return jsonrpclib.Fault(_INVALID_REQUEST, "Batches are not served", config=JSON_RPC).dump()
        return super()._unmarshaled_dispatch(request, dispatch_method)

    def note_error(self, error: BaseException | None) -> None:
        """Log why a connection has ended."""
        # Clients may leave before the answer, and slow ones are dropped: that is normal.
        level = logging.DEBUG if isinstance(error, ConnectionError) else logging.INFO
        _log.log(level, "rpc: connection ended: %r", error, extra=_ABOUT)


class RpcServer:
    """Serves `methods` on a Unix socket that only its owner and `group` may use.

    A method that raises UserError is answered with an error of that one line; other exceptions are answered without any
    detail. The caller must hold the instance lock of the service: a socket file found at `path` is
    removed as a leftover. Raises UserError if the socket cannot be made.
    """

    def __init__(self, path: Path, methods: Mapping[str, Callable[..., Json]], group: SocketGroup | None) -> None:
        self._path = path
        self._server = _Server(path)
        for name, method in methods.items():
            self._server.register_function(_with_faults(method), name)
        try:
            bind_unix_socket(self._server.server_bind, path, group)
        except UserError:
            self._server.socket.close()
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self._server.server_activate()
        self._thread = threading.Thread(target=self._server.serve, name="rpc", daemon=True)
        self._thread.start()

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
            code = NOT_YET_APPLIED if isinstance(error, NotYetAppliedError) else REFUSED
            return jsonrpclib.Fault(code, str(error), config=JSON_RPC)

    return answer


# It logs what clients send, and every method's exception with its traceback.
logging.getLogger("jsonrpclib").setLevel(logging.CRITICAL)
