"""Serves the metrics by HTTP, on a Unix socket and on a TCP address."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from mptcp_throttle.bounded_server import BoundedReader, BoundedServer, bind_unix_socket
from mptcp_throttle.errors import UserError
from mptcp_throttled.reporting import instruments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from prometheus_client import Metric
    from prometheus_client.registry import Collector

    from mptcp_throttle.config.schema import ListenAddress, SocketGroup

_log = logging.getLogger("mptcp-throttled")

PATH: Final = "/metrics"
_MAX_REQUEST_BYTES: Final = 16384
# However often clients ask, metrics take little of the daemon's time.
_SAME_ANSWER_SECONDS: Final = 0.5


class Exposition(CollectorRegistry):
    """All metrics of the daemon as text; `families` are those of `MetricFamilies`."""

    def __init__(self, families: Collector) -> None:
        super().__init__()
        self._families = families
        ProcessCollector(registry=self)
        self._rendering = threading.Lock()
        self._answers: dict[str, bytes] = {}
        self._expiry = 0.0

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield from self._families.collect()
        yield from instruments.REGISTRY.collect()
        yield from super().collect()

    def answer(self, accept: str) -> tuple[bytes, str]:
        """The text, and its content type: OpenMetrics, or Prometheus's own, as `accept` asks for."""
        encode, content_type = choose_encoder(accept)
        with self._rendering:
            now = time.monotonic()
            if now >= self._expiry:
                self._answers.clear()
                self._expiry = now + _SAME_ANSWER_SECONDS
            text = self._answers.get(content_type)
            if text is None:
                text = self._answers[content_type] = encode(self)
        return text, content_type


class _Handler(BaseHTTPRequestHandler):
    """The requests of one connection."""

    server: _Server
    rfile: BoundedReader  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.rfile = BoundedReader(self.rfile, _MAX_REQUEST_BYTES)  # type: ignore[arg-type]

    def handle_one_request(self) -> None:
        self.rfile.expect_request()
        super().handle_one_request()

    def do_GET(self) -> None:
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # the body is not read
        if self.request_version == "HTTP/0.9":
            self.send_error(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
            return
        if urlsplit(self.path).path != PATH:
            self.send_error(HTTPStatus.NOT_FOUND, explain=f"The metrics are at {PATH}.")
            return
        self.server.begin_answer(self.connection)
        text, content_type = self.server.exposition.answer(self.headers.get("Accept", ""))
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def send_response(self, code: int, message: str | None = None) -> None:
        self.server.end_answer(self.connection)
        self.send_response_only(code, message)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        _log.debug("metrics: " + format, *arguments)


class _Server(BoundedServer):
    allow_reuse_address = True

    def __init__(self, family: socket.AddressFamily, address: object, exposition: Exposition) -> None:
        self.address_family = family
        self.exposition = exposition
        super().__init__(address, _Handler, bind_and_activate=False)

    def note_error(self, error: BaseException | None) -> None:
        _log.debug("metrics: connection ended: %r", error)


class MetricsServer:
    """Serves the metrics until `close`. What cannot be served is in the log, and stops nothing."""

    def __init__(self) -> None:
        self._servers: list[tuple[_Server, threading.Thread]] = []
        self._socket: Path | None = None

    def serve_socket(self, path: Path, group: SocketGroup | None, exposition: Exposition) -> None:
        """On a Unix socket that only its owner and `group` may use."""
        server = _Server(socket.AF_UNIX, str(path), exposition)
        try:
            bind_unix_socket(server.server_bind, path, group)
        except UserError as error:
            server.socket.close()
            _log.error("metrics are not served: %s", error)
            return
        self._socket = path
        self._start(server)

    def serve_address(self, address: ListenAddress, exposition: Exposition) -> None:
        """On a TCP address, for all who can connect to it."""
        family = socket.AF_INET6 if address.host.version == 6 else socket.AF_INET
        server = _Server(family, (str(address.host), address.port), exposition)
        try:
            server.server_bind()
        except OSError as error:
            server.socket.close()
            reason = os.strerror(error.errno or 0)
            _log.error("metrics are not served: metrics.listen: %s: cannot be used: %s", address, reason)
            return
        self._start(server)

    def close(self) -> None:
        """Stop serving."""
        for server, thread in self._servers:
            server.server_close()
            thread.join()
        if self._socket is not None:
            with suppress(OSError):
                self._socket.unlink()

    def _start(self, server: _Server) -> None:
        server.server_activate()
        thread = threading.Thread(target=server.serve, name="metrics", daemon=True)
        thread.start()
        self._servers.append((server, thread))
