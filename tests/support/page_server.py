"""`mptcp-throttle-web` as a separate program, in front of a daemon of canned answers; and HTTP requests to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from polling import eventually

from mptcp_lab.free_port import free_port
from mptcp_lab.watched_page import write_config
from mptcp_throttle.config.schema import Sockets
from mptcp_throttle.errors import UserError
from mptcp_throttle.rpc import RpcServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PROGRAM: Final = Path(sys.executable).parent / "mptcp-throttle-web"
JSON_BODY: Final = {"Content-Type": "application/json"}

CLIENT: Final = "10.1.0.2"


RECENT: Final[list[dict[str, Any]]] = [{"client": CLIENT, "client_port": 40001, "reason": f"{CLIENT}:40001 is capped"}]
STATUS: Final[dict[str, Any]] = {
    "daemon": {
        "version": "1",
        "pause": None,
        "budget_problem": None,
        "errors": ["class 4d50:2: refused"],
        "not_enforced": [],
        "features": {
            name: {"problem": None, "switched_off": None, "counters": {}}
            for name in ("steering", "pacing", "uplinks", "discards")
        },
        "config": {"problems": []},
    },
    "sniffer": {"connected": True, "problem": None},
    "networks": [{"name": "lte", "sick": []}],
}
CLIENTS: Final[dict[str, Any]] = {
    "total": 1,
    "on_networks": [{"name": "lte", "clients": 1}],
    "clients": [{"client": CLIENT, "device": "phone", "networks": [{"name": "lte", "client": CLIENT, "until": None}]}],
}
NOTHING: Final = dict.fromkeys(
    ("sent", "retransmitted", "ip_sent", "ip_received", "ip_sent_throttled", "rtt_seconds", "rtt_samples"), 0
)
HISTORY: Final[dict[str, Any]] = {
    "kind": "network",
    "resolution": 1,
    "periods": [
        {**NOTHING, "start": 10, "sent": 100_000, "retransmitted": 2000, "ip_sent": 125_000}
        | {"ip_sent_throttled": 100_000, "held_back_ms": 400, "rtt_seconds": 0.5, "rtt_samples": 10},
        {**NOTHING, "start": 11, "ip_received": 1, "held_back_ms": 20},
    ],
}

EVENTS: Final[dict[str, Any]] = {
    "instance": "a",
    "latest": 3,
    "events": [
        {"number": 2, "text": f"lte: cap 1mbit for {CLIENT}", "client": CLIENT},
        {"number": 3, "text": "resumed"},
    ],
}
WEEK: Final[dict[str, Any]] = {
    "networks": [{"name": "lte", "intervals": [{"start": 0, "end": 9, "when": "01:00-06:00", "counts": False}]}],
}


@dataclass
class CannedDaemon:
    """Answers as a daemon does, from `status` and `recent`, counts the calls, and keeps what was `asked` last.

    The rates that it shows are `rates_age` seconds old, and it needs `delay` seconds for them.
    """

    calls: Counter[str] = field(default_factory=Counter)
    changes: list[tuple[object, ...]] = field(default_factory=list)
    asked: dict[str, tuple[object, ...]] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=lambda: deepcopy(STATUS))
    clients: dict[str, Any] = field(default_factory=lambda: deepcopy(CLIENTS))
    events: dict[str, Any] = field(default_factory=lambda: deepcopy(EVENTS))
    week: dict[str, Any] = field(default_factory=lambda: deepcopy(WEEK))
    recent: list[dict[str, Any]] = field(default_factory=lambda: deepcopy(RECENT))
    history_kind: str = "network"
    history_problem: str | None = None
    rates_age: float = 0.0
    delay: float = 0.0

    def methods(self) -> dict[str, Callable[..., Any]]:
        """The methods that the page calls."""

        def canned(name: str, answer: Callable[[], object]) -> Callable[..., object]:
            def method(*parameters: object) -> object:
                self.calls[name] += 1
                self.asked[name] = parameters
                return answer()

            return method

        return {
            "status": canned("status", self._status),
            "clients": canned("clients", lambda: self.clients),
            "budgets": canned("budgets", lambda: {"budgets": []}),
            "client": lambda name: canned("client", lambda: {"name": name})(name),
            "events": canned("events", lambda: self.events),
            "week": canned("week", lambda: self.week),
            "decisions": canned("decisions", lambda: {"decisions": self.recent}),
            "history": canned("history", self._history),
            "overrides": canned("overrides", lambda: {"overrides": []}),
            "set_rate": self._set_rate,
            "pause": lambda seconds: self.changes.append(("pause", seconds)),
            "resume": lambda: self.changes.append(("resume",)),
            "reset_rate": lambda *of: self.changes.append(("reset_rate", *of)),
        }

    def _status(self) -> dict[str, Any]:
        time.sleep(self.delay)
        return {**self.status, "daemon": {**self.status["daemon"], "observed_at": self._observed_at()}}

    def _observed_at(self) -> float:
        return time.time() - self.rates_age

    def _history(self) -> dict[str, Any]:
        if self.history_problem is not None:
            raise UserError(self.history_problem)
        return {**HISTORY, "kind": self.history_kind}

    def _set_rate(
        self, network: str, direction: str, kind: str, rate: str | None, seconds: float | None, *client: str
    ) -> None:
        if network != "lte":
            raise UserError(f"{network}: no such access network")
        self.changes.append(("set_rate", network, direction, kind, rate, seconds, *client))


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401
        """The body."""
        return json.loads(self.body)

    @property
    def cookie(self) -> str:
        """What the answer sets, without its attributes."""
        return self.headers["set-cookie"].partition(";")[0]


class _UnixConnection(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(str(self._path))


@dataclass
class PageServer:
    """The running program: `port` on 127.0.0.1, by HTTPS if it has a certificate, and its Unix socket."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes]
    certificate: Path | None = None

    @property
    def sockets(self) -> Sockets:
        """The sockets of all services."""
        return Sockets.below(self.directory / "run")

    @property
    def log(self) -> str:
        """All that it has logged."""
        return (self.directory / "web.log").read_text(encoding="utf-8")

    def connection(self, *, unix: bool = False) -> HTTPConnection:
        """A new one."""
        if unix:
            return _UnixConnection(self.sockets.web)
        if self.certificate is None:
            return HTTPConnection("127.0.0.1", self.port, timeout=30)
        context = ssl.create_default_context(cafile=self.certificate)
        return HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)

    @property
    def origin(self) -> str:
        """The origin (RFC 6454) of what browsers load from the port."""
        return f"{'http' if self.certificate is None else 'https'}://127.0.0.1:{self.port}"

    def ask(
        self,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        method: str | None = None,
        unix: bool = False,
    ) -> Answer:
        """One request on a connection of its own: POST with a body, which the page itself would send, else GET."""
        with closing(self.connection(unix=unix)) as connection:
            origin = "http://localhost" if unix else self.origin
            given = {**({} if body is None else {**JSON_BODY, "Origin": origin}), **(headers or {})}
            data = None if body is None else json.dumps(body)
            connection.request(method or ("GET" if body is None else "POST"), path, data, given)
            answer = connection.getresponse()
            lower = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, lower, answer.read())

    def first_event(
        self, path: str = "/api/events", headers: Mapping[str, str] | None = None, *, unix: bool = False
    ) -> Any:  # noqa: ANN401
        """What the stream of events shows first."""
        return _first_event(self.connection(unix=unix), path, headers or {})

    def raw(self) -> socket.socket:
        """A bare connection to the port."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def serves(self) -> bool:
        """Whether it answers a new connection within 10 s, whoever else is connected.

        A connection that had to wait for the end of a thousand idle ones would take 20 s and more: some 200 of them are
        open at a time, for 5 s each.
        """
        began = time.monotonic()
        return self.ask("/api/session").status == 200 and time.monotonic() - began < 10


def first_event(port: int) -> Any:  # noqa: ANN401
    """What the stream of events of a page on that port of 127.0.0.1 shows first."""
    return _first_event(HTTPConnection("127.0.0.1", port, timeout=30), "/api/events", {})


def _first_event(connection: HTTPConnection, path: str, headers: Mapping[str, str]) -> Any:  # noqa: ANN401
    with closing(connection):
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return json.loads(answer.readline().removeprefix(b"data: "))


@dataclass(frozen=True)
class Certificate:
    """Files in PEM."""

    certificate: Path
    key: Path

    @classmethod
    def made_in(cls, directory: Path) -> Certificate:
        """A new one, for proxy.example and 127.0.0.1."""
        made = cls(directory / "certificate.pem", directory / "key.pem")
        request = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        names = ("-subj", "/CN=proxy.example", "-addext", "subjectAltName=DNS:proxy.example,IP:127.0.0.1")
        files = ("-keyout", made.key, "-out", made.certificate, "-days", "1")
        subprocess.run([*request, *names, *files], check=True, capture_output=True)
        return made

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the section `web`."""
        return {"certificate": str(self.certificate), "key": str(self.key)}


@contextmanager
def page_server(directory: Path, web: Mapping[str, object] | None = None) -> Iterator[PageServer]:
    """The program with this section `web`, on a free port. It must end by SIGTERM, with status 0 and no traceback."""
    port = free_port()
    config = write_config(directory, {"listen": f"127.0.0.1:{port}", **(web or {})})
    with (directory / "web.log").open("ab") as log:
        process = subprocess.Popen([PROGRAM, "--config", config], stderr=log, stdout=log)
    certificate = (web or {}).get("certificate")
    server = PageServer(directory, port, process, None if certificate is None else Path(str(certificate)))
    try:
        eventually(lambda: "the page is on" in server.log or process.poll() is not None, "the page is served")
        assert process.poll() is None, server.log
        yield server
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
        status = process.wait(30)
    assert status == 0, server.log
    assert "Traceback" not in server.log, server.log
    assert not server.sockets.web.exists()


@contextmanager
def canned_daemon(directory: Path) -> Iterator[CannedDaemon]:
    """At the daemon's socket of that directory."""
    canned = CannedDaemon()
    path = Sockets.below(directory / "run").daemon
    path.parent.mkdir(parents=True, exist_ok=True)
    server = RpcServer(path, canned.methods(), None)
    try:
        yield canned
    finally:
        server.close()
