"""Checks every request first: is it for this page, does it come from it, is it small? Adds headers for browsers.

Pages of other sites run in the same browser. They must not read this page under a host name of their own (DNS
rebinding: the Host header shows it), nor use the session of a visitor who has logged in to change anything.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log = logging.getLogger("mptcp-throttle-web")

MAX_BODY_BYTES: Final = 4096
_BODY_SECONDS: Final = 5.0
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Guard:
    """Calls `application` for requests that pass. `names` are the allowed host names besides those of loopback."""

    def __init__(self, application: ASGIApp, names: Iterable[str]) -> None:
        self._application = application
        self._names = _LOOPBACK_NAMES.union(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                if "Cache-Control" not in headers:
                    headers["Cache-Control"] = "no-cache" if scope["path"].startswith("/static/") else "no-store"
            await send(message)

        due = asyncio.get_running_loop().time() + _BODY_SECONDS

        async def receive_in_time() -> Message:
            async with asyncio.timeout_at(due):
                return await receive()

        application = self._refusal(scope["method"], scope["path"], Headers(scope=scope)) or self._application
        try:
            await application(scope, receive_in_time if scope["method"] == "POST" else receive, send_with_headers)
        except Exception:
            # Starlette has answered, and passes the exception on.
            _log.exception("%s %s", scope["method"], scope["path"])

    def _refusal(self, method: str, path: str, headers: Headers) -> JSONResponse | None:
        host = headers.get("host", "")
        if _host_name(host) not in self._names:
            return _refused(421, f"this page is not served under that name; allowed: {', '.join(sorted(self._names))}")
        if method not in {"GET", "HEAD", "POST"}:
            return _refused(405, "allowed: GET, HEAD, POST")
        is_foreign = headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}
        if path.startswith("/api/") and is_foreign:
            return _refused(403, "allowed: requests of this page")
        return _post_refusal(host, headers) if method == "POST" else None


def _refused(status: int, problem: str) -> JSONResponse:
    return JSONResponse({"problem": problem}, status)


def _post_refusal(host: str, headers: Headers) -> JSONResponse | None:
    if headers.get("origin", "").lower() not in {f"http://{host.lower()}", f"https://{host.lower()}"}:
        return _refused(403, "allowed: requests of this page (Origin)")
    if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return _refused(415, "allowed: application/json")
    # A chunked body may have any length, whatever Content-Length says.
    if "transfer-encoding" in headers:
        return _refused(411, "allowed: a body with Content-Length")
    length = headers.get("content-length", "")
    if not length.isdecimal():
        return _refused(411, "Content-Length is required")
    if int(length[:10]) > MAX_BODY_BYTES:
        return _refused(413, f"allowed: up to {MAX_BODY_BYTES} bytes")
    return None


def _host_name(host: str) -> str:
    """The name in a Host header, in lower case and without the port; empty if it has none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
