"""The server of the metrics: formats, bounds, and what its clients cannot do."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from ipaddress import ip_address
from pathlib import Path

import pytest
from polling import eventually
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from mptcp_throttle.config.schema import ListenAddress
from mptcp_throttled.answers.metrics import server as metrics_server
from mptcp_throttled.answers.metrics.server import Exposition, MetricsServer


class Counted(Collector):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.times = 0

    def collect(self) -> Iterator[Metric]:
        self.times += 1
        yield GaugeMetricFamily("times", "How often this was asked.", value=self.times)


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
def address() -> ListenAddress:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        return ListenAddress(ip_address("127.0.0.1"), free.getsockname()[1])


@pytest.fixture
def server(address: ListenAddress, counted: Counted) -> Iterator[MetricsServer]:
    server = MetricsServer()
    server.serve_address(address, Exposition(counted))
    yield server
    server.close()


def get(address: ListenAddress, path: str = "/metrics", accept: str = "") -> tuple[int, str, str]:
    """Status, content type and body."""
    with closing(HTTPConnection(str(address.host), address.port, timeout=10)) as connection:
        connection.request("GET", path, headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()


def sent(address: ListenAddress, request: bytes) -> bytes:
    """All that is answered to some bytes."""
    with socket.create_connection((str(address.host), address.port), timeout=20) as connection:
        answer = b""
        connection.sendall(request)
        with suppress(OSError):  # the server has closed the connection
            connection.shutdown(socket.SHUT_WR)
        while data := connection.recv(65536):
            answer += data
        return answer


@pytest.mark.usefixtures("server")
def test_metrics_are_text_or_openmetrics_as_asked(address: ListenAddress) -> None:
    status, kind, text = get(address)
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    names = {family.name for family in parse_text(text)}
    assert {"times", "mptcpthrottle_errors", "mptcpthrottle_join_to_cap_seconds", "process_cpu_seconds"} <= names
    status, kind, text = get(address, accept="application/openmetrics-text; version=1.0.0")
    assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
    assert "times" in {family.name for family in parse_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert "_created" not in text


@pytest.mark.usefixtures("server")
def test_many_requests_are_one_collection(address: ListenAddress, counted: Counted) -> None:
    began = time.monotonic()
    for _ in range(50):
        get(address)
    assert counted.times <= 1 + (time.monotonic() - began) / metrics_server._SAME_ANSWER_SECONDS


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("path", ["/", "/metrics/", "/../metrics", "/%2e%2e/etc/passwd", "/metrics%00"])
def test_other_paths_are_not_found(address: ListenAddress, path: str) -> None:
    status, _, text = get(address, path)
    assert status == 404
    assert "passwd" not in text


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\0" * 1000,
        b"GET /metrics\r\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 10_000_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
    ],
    ids=["zeros", "no version", "POST", "many headers", "10 MB header", "long path", "no URL"],
)
def test_malformed_request_gets_no_metrics_and_harms_no_other(address: ListenAddress, request_bytes: bytes) -> None:
    try:
        answer = sent(address, request_bytes)
    except (BrokenPipeError, ConnectionResetError):
        answer = b""
    assert b"mptcpthrottle" not in answer
    assert b"Traceback" not in answer
    assert get(address)[0] == 200


@pytest.mark.usefixtures("server")
def test_body_of_a_get_is_no_second_request(address: ListenAddress) -> None:
    body = b"GET /metrics HTTP/1.1\r\n\r\n"
    request = b"GET /metrics HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    assert sent(address, request).count(b"HTTP/1.1 200") == 1


@pytest.mark.usefixtures("server")
def test_300_idle_clients_do_not_delay_a_scrape(address: ListenAddress) -> None:
    idle = [socket.create_connection((str(address.host), address.port)) for _ in range(300)]
    began = time.monotonic()
    assert get(address)[0] == 200
    assert time.monotonic() - began < 2.5
    for connection in idle:
        connection.close()


@pytest.mark.usefixtures("server")
def test_slow_client_is_dropped(address: ListenAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mptcp_throttle.bounded_server._CLIENT_SECONDS", 0.2)
    with socket.create_connection((str(address.host), address.port), timeout=20) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        assert connection.recv(1) == b""


@pytest.mark.usefixtures("server")
def test_address_in_use_is_logged_and_no_failure(
    address: ListenAddress, counted: Counted, caplog: pytest.LogCaptureFixture
) -> None:
    other = MetricsServer()
    other.serve_address(address, Exposition(counted))
    assert [record.getMessage() for record in caplog.records] == [
        f"metrics are not served: metrics.listen: {address}: cannot be used: Address already in use"
    ]
    other.close()


def test_unix_socket_is_for_owner_and_group_and_replaces_a_leftover(tmp_path: Path, counted: Counted) -> None:
    path = tmp_path / "metrics.sock"
    path.write_text("a leftover")
    server = MetricsServer()
    server.serve_socket(path, None, Exposition(counted))
    assert path.stat().st_mode & 0o777 == 0o660
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        eventually(lambda: b"200" in connection.recv(64), "an answer")
    server.close()
    assert not path.exists()
