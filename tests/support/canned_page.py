"""The page with the answers of `page_answers`, which stand still: for pictures and states of the page."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import page_answers as answers
from page_company import NOW

import mptcp_throttle_web

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_STATIC: Final = Path(mptcp_throttle_web.__file__).parent / "static"
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_POLICY: Final = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"


@dataclass
class CannedPage:
    """What the server answers. `failing` are parts of the API that refuse; `silent`: the stream says nothing."""

    origin: str = ""
    event: Any = field(default_factory=answers.event)
    clients: list[Any] = field(default_factory=answers.clients)
    parts: dict[str, Any] = field(default_factory=dict)
    session: dict[str, Any] = field(
        default_factory=lambda: (
            {"version": "1.0", "may_log_in": True, "logged_in": True, "sees": True}
            | {"sees_addresses": True, "may_change": True}
        )
    )
    silent: bool = False
    requests: list[str] = field(default_factory=list)
    changes: list[tuple[str, Any]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def part(self, name: str, query: Mapping[str, str]) -> Any:  # noqa: ANN401
        """The answer to GET /api/NAME."""
        if name in self.parts:
            return self.parts[name]
        match name:
            case "session":
                return self.session
            case "clients":
                return self._clients(query)
            case "client":
                found = [row for row in self.clients if query["name"] in {row["client"], row["device"]}]
                return answers.one_client(found[0]) if found else {"problem": f"{query['name']}: no such client"}
            case "history":
                return self._history(query["name"], query.get("network"), int(query["seconds"]))
            case "week":
                return answers.week(float(query["at"]) if "at" in query else None)
            case "waiting":
                return answers.waiting(NOW)
        return getattr(answers, name)()

    def _history(self, name: str, network: str | None, seconds: int) -> Any:  # noqa: ANN401
        sent = {shown["name"]: shown["sent_bps"] for shown in self.event["networks"]}
        if network is None and name in sent:
            return answers.history(name, sent[name], seconds, NOW)
        (row,) = (row for row in self.clients if name in {row["client"], row["device"]})
        return answers.client_history(row, network, seconds)

    def _clients(self, query: Mapping[str, str]) -> Any:  # noqa: ANN401
        begin, number = int(query.get("from", "0")), int(query.get("number", "100"))
        rows = [row for row in self.clients if query.get("search", "") in f"{row['device']} {row['client']}"]
        if rule := query.get("rule"):
            rows = [row for row in rows if any(shown["rule"] == rule for shown in row["networks"])]
        if name := query.get("network"):
            rows = [row for row in rows if any(shown["name"] == name for shown in row["networks"])]
        keys = {"held": "held_back_ms", "sent": "sent_bps", "subflows": "subflows", "received": "received_bps"}
        if (order := query.get("order", "sent")) == "name":
            rows.sort(key=lambda row: row["device"] or row["client"])
        else:
            rows.sort(key=lambda row: (-row[keys[order]], -row["sent_bps"]))
        shown = {"observed_at": NOW, "total": len(self.clients), "matching": len(rows), "start": begin}
        return {**shown, "clients": rows[begin : begin + number]}


class _Handler(BaseHTTPRequestHandler):
    page: CannedPage

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.page.requests.append(self.path)
        if url.path == "/api/events":
            self._stream()
        elif url.path.startswith("/api/"):
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            answer = self.page.part(url.path.removeprefix("/api/"), query)
            refused = isinstance(answer, dict) and set(answer) == {"problem"} and answer["problem"] is not None
            self._send(
                json.dumps(answer).encode(), "application/json", HTTPStatus.CONFLICT if refused else HTTPStatus.OK
            )
        else:
            file = _STATIC / (url.path.removeprefix("/static/") if url.path != "/" else "index.html")
            self._send(file.read_bytes(), _TYPES[file.suffix])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method = self.path.removeprefix("/api/change/")
        self.page.changes.append((method, body))
        undo = [{"method": "reset_rate", "body": {"network": body.get("network"), "client": body.get("client")}}]
        answer = {"did": f"{method} was done", "undo": undo if method == "set_rate" else None}
        self._send(json.dumps(answer).encode(), "application/json")

    def _stream(self) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            while not self.page.ended.wait(0.5):
                if not self.page.silent:
                    self.wfile.write(b"data: " + json.dumps(self.page.event).encode() + b"\n\n")
        except OSError:
            return

    def _send(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def canned_page() -> Iterator[CannedPage]:
    """On a free port of 127.0.0.1."""
    page = CannedPage()
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"page": page})) as server:
        page.origin = f"http://127.0.0.1:{server.server_port}"
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield page
        finally:
            page.ended.set()
            server.shutdown()
            serving.join()


if __name__ == "__main__":
    with canned_page() as shown:
        print(shown.origin, flush=True)
        time.sleep(10**6)
