"""The client end: pelix's proxy with a deadline for each call (see `mptcp_throttle.rpc`)."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any, Final

from jsonrpclib.jsonrpc import ProtocolError, ServerProxy, TransportError, UnixHTTPConnection, UnixTransport

from mptcp_throttle.errors import UserError, shown
from mptcp_throttle.rpc.wire import JSON_RPC, NOT_YET_APPLIED, REFUSED, Json

if TYPE_CHECKING:
    from pathlib import Path


_MAX_ANSWER_BYTES: Final = 1 << 26
"""Far more than the sniffer's longest answer: a part of its table, or of the changes, has a few megabytes."""


class RpcError(UserError):
    """The service did not answer, or answered with an error."""


class ChangeNotYetAppliedError(RpcError):
    """The daemon has saved a change, and applies it later all the same."""


class _TooLong(Exception):
    """The answer is longer than allowed."""


class _BoundedSocket(socket.socket):
    """A Unix socket for one call after another: `expect_answer` before each.

    Blocking calls raise TimeoutError at the deadline (time.monotonic), or up to a tenth of the time that was left when
    they began later; _TooLong after `bytes_left` received bytes.
    """

    def __init__(self) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._timeout_set = 0.0
        self.expect_answer(0.0, 0)

    def expect_answer(self, deadline: float, bytes_left: int) -> None:
        self.deadline = deadline
        self.bytes_left = bytes_left

    def _left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _bound_by_deadline(self) -> None:
        # settimeout() releases the interpreter's lock, and waits for it again while another thread computes.
        left = self._left()
        if not 0.9 * left <= self._timeout_set <= 1.1 * left:
            self._timeout_set = left
            self.settimeout(left)

    def connect(self, address: str) -> None:  # type: ignore[override]
        # With Python's timeout the socket is non-blocking, and connect fails with EAGAIN if the server's queue is full.
        microseconds = int(self._left() * 1e6) + 1
        timeval = struct.pack("ll", *divmod(microseconds, 1_000_000))
        self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        super().connect(address)

    def sendall(self, *arguments: Any) -> None:  # noqa: ANN401
        self._bound_by_deadline()
        # A server that refuses a request need not have read it; its answer can still be read.
        with contextlib.suppress(BrokenPipeError):
            super().sendall(*arguments)

    def recv_into(self, *arguments: Any) -> int:  # noqa: ANN401
        self._bound_by_deadline()
        received = super().recv_into(*arguments)
        self.bytes_left -= received
        if self.bytes_left < 0:
            raise _TooLong
        return received


class _Response(HTTPResponse):
    """An answer that closes the connection if it cannot be read to its end: pelix does not for one with an error."""

    def read(self, amount: int | None = None) -> bytes:
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.close)
            body = super().read(amount)
            on_failure.pop_all()
        return body


class _Transport(UnixTransport):  # type: ignore[misc]
    """Calls that end within `timeout` seconds and can be interrupted; one connection for many calls with `keep`.

    An answer with more than `max_bytes` raises _TooLong.
    """

    _connection: tuple[str | None, UnixHTTPConnection | None]

    def __init__(self, path: Path, timeout: float, max_bytes: int, *, keep: bool) -> None:
        super().__init__(JSON_RPC)
        self.accept_gzip_encoding = False
        self._path = str(path)
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._keep = keep
        self._socket: _BoundedSocket | None = None
        self._interrupted = False

    def request(self, host: str, handler: str, request_body: str, verbose: bool = False) -> str:
        self._deadline = time.monotonic() + self._timeout
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            answer = super().request(host, handler, request_body, verbose)
            if self._keep:
                stack.pop_all()
        return str(answer)

    def make_connection(self, host: str) -> UnixHTTPConnection:
        connection = self._connection[1]
        if connection is None or connection.sock is None or self._socket is None:
            self.close()
            connection = UnixHTTPConnection(self._path)
            connection.response_class = _Response
            self._connection = host, connection
            self._socket = connection.sock = _BoundedSocket()
            self._socket.expect_answer(self._deadline, self._max_bytes)
            self._socket.connect(self._path)
            if self._interrupted:
                raise ConnectionAbortedError("interrupted")
        self._socket.expect_answer(self._deadline, self._max_bytes)
        return connection

    def parse_response(self, response: HTTPResponse) -> str:
        # The base class reads 1 KiB at a time; a part of the table has 2 MB.
        with response:
            # Python allocates what is announced before it reads.
            if response.length is not None and response.length > self._max_bytes:
                raise _TooLong
            return response.read().decode()

    def close(self) -> None:
        super().close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def interrupt(self) -> None:
        self._interrupted = True
        current = self._socket
        if current is not None:
            with contextlib.suppress(OSError):
                current.shutdown(socket.SHUT_RDWR)


class RpcClient:
    """Calls a service; a call takes at most `timeout` seconds. Not for concurrent use.

    An answer may have `max_bytes`. With `keep`, the connection stays open for the next call.
    """

    def __init__(
        self, path: Path, timeout: float = 5.0, *, keep: bool = False, max_bytes: int = _MAX_ANSWER_BYTES
    ) -> None:
        self._path = path
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._transport = _Transport(path, timeout, max_bytes, keep=keep)
        self._proxy = ServerProxy(f"unix+http://.{path.absolute()}", transport=self._transport, config=JSON_RPC)

    def call(self, method: str, *params: Json) -> Json:
        """The result of `method`. Raises RpcError if the service refuses the call or does not answer in time."""
        try:
            return getattr(self._proxy, method)(*params)
        except TransportError as error:
            problem = f"{self._path}: HTTP status {error.errcode}: {shown(error.errmsg)}"
            raise RpcError(problem, os.EX_UNAVAILABLE) from error
        except ProtocolError as error:
            detail = error.args[0]
            code, message = detail[:2] if isinstance(detail, tuple) else (REFUSED, detail)
            kind = ChangeNotYetAppliedError if code == NOT_YET_APPLIED else RpcError
            raise kind(" ".join(str(message).split())) from error
        except _TooLong as error:
            problem = f"{self._path}: the answer is longer than {self._max_bytes} bytes"
            raise RpcError(problem, os.EX_UNAVAILABLE) from error
        except PermissionError as error:
            raise RpcError(f"{self._path}: permission denied; its group may use it", os.EX_NOPERM) from error
        except (TimeoutError, BlockingIOError) as error:
            raise RpcError(f"{self._path}: no answer in {self._timeout:g} s", os.EX_UNAVAILABLE) from error
        except OSError as error:
            raise RpcError(f"{self._path}: no service answers ({error})", os.EX_UNAVAILABLE) from error
        except Exception as error:
            # http.client, json and pelix raise many kinds of exceptions over a malformed answer.
            problem = f"{self._path}: the answer is not JSON-RPC: {shown(str(error))}"
            raise RpcError(problem, os.EX_UNAVAILABLE) from error

    def close(self) -> None:
        """Close the connection that is kept, if there is one."""
        self._transport.close()

    def interrupt(self) -> None:
        """From another thread: end the call that is waiting and all later ones; they raise RpcError."""
        self._transport.interrupt()
