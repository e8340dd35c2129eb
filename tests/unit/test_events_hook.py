"""config/examples/events/: the hook tells by mail and chat what the daemon says, and a failure ends nothing."""

from __future__ import annotations

import json
import os
import shutil
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

EXAMPLE: Final = Path(__file__).parents[2] / "config/examples/events"
HOST: Final = socket.gethostname()


class Chat(BaseHTTPRequestHandler):
    """An incoming webhook."""

    told: Final[list[Any]] = []

    def do_POST(self) -> None:
        """Take a message."""
        self.told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Mail(socketserver.StreamRequestHandler):
    """As much of SMTP as a client needs to get rid of a mail."""

    told: Final[list[str]] = []

    def handle(self) -> None:
        """Take mails."""
        self.wfile.write(b"220 test\r\n")
        while line := self.rfile.readline():
            if line.upper().startswith(b"DATA"):
                self.wfile.write(b"354 go on\r\n")
                mail = b"".join(iter(self.rfile.readline, b".\r\n"))
                self.told.append(mail.decode())
            self.wfile.write(b"221 bye\r\n" if line.upper().startswith(b"QUIT") else b"250 ok\r\n")


@contextmanager
def serving(server: socketserver.TCPServer) -> Iterator[str]:
    """The address of a server on the loopback interface."""
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def hook(*kinds: str, **environment: str) -> str:
    """What the hook prints to stderr when it is given events of these kinds."""
    lines = [json.dumps({"kind": kind, "text": f"text of {kind}", "missed": len(kinds) - 1}) + "\n" for kind in kinds]
    settings = {**os.environ, "no_proxy": "*", **environment}
    result = subprocess.run(
        [EXAMPLE / "tell-operator"], input="".join(lines), env=settings, text=True, stderr=subprocess.PIPE, check=True
    )
    return result.stderr


def test_hook_mails_and_posts_all_events_but_caps() -> None:
    with (
        serving(HTTPServer(("127.0.0.1", 0), Chat)) as chat,
        serving(socketserver.TCPServer(("127.0.0.1", 0), Mail)) as server,
    ):
        printed = hook(
            "window-began", "cap-began", CHAT_URL=f"http://{chat}", MAIL_TO="operator@example.org", MAIL_SERVER=server
        )
    assert Chat.told == [{"text": f"{HOST}: text of window-began"}]
    (mail,) = Mail.told
    assert f"Subject: {HOST}: text of window-began\r\n" in mail
    assert "To: operator@example.org\r\n" in mail
    assert printed == "1 events were missed\n" * 2


def test_hook_goes_on_when_nobody_can_be_told() -> None:
    printed = hook("paused", CHAT_URL="http://127.0.0.1:1", MAIL_TO="operator@example.org", MAIL_SERVER="127.0.0.1:1")
    refused = "[Errno 111] Connection refused"
    assert printed.splitlines() == [
        f"not told: text of paused: {refused}",
        f"not told: text of paused: <urlopen error {refused}>",
    ]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_unit_passes_systemd_analyze_verify(tmp_path: Path) -> None:
    text = (EXAMPLE / "mptcp-throttle-events.service").read_text(encoding="utf-8")
    (tmp_path / "mptcp-throttle-events.service").write_text(text, encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "mptcp-throttle-events.service")]
    verdict = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert [line for line in verdict.stderr.splitlines() if "mptcp-throttle-events" in line] == []
