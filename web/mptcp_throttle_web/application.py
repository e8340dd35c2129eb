"""The page and its API, for one listener. What a visitor may see and do depends on the listener and the log-in."""

from __future__ import annotations

import json
import logging
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from mptcp_throttle.command_line import version
from mptcp_throttle.errors import UserError
from mptcp_throttle.logs import about
from mptcp_throttle_web.feed import Feed, Viewer
from mptcp_throttle_web.questions import EXPORTS, KINDS, Question
from mptcp_throttle_web.refusal import Refused
from mptcp_throttle_web.sessions import SESSION_SECONDS, Attempts, Session, Sessions, TooManyAttempts
from mptcp_throttle_web.shared_answers import Busy
from mptcp_throttle_web.tables import TABLES, as_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from mptcp_throttle_web.control import Control
    from mptcp_throttle_web.feed import Form
    from mptcp_throttle_web.hiding import Hider
    from mptcp_throttle_web.questions import Kind

_log = logging.getLogger("mptcp-throttle-web")
_ABOUT: Final = about("log-ins")

_STATIC: Final = Path(__file__).parent / "static"
_COOKIE: Final = "mptcp-throttle-session"
_SECRET: Final = "X-Session-Secret"  # noqa: S105


class Visitors(StrEnum):
    """Who can connect to a listener: the socket's group, which sees addresses; all users of this host, who must log in
    for that; or all hosts of the network, which must log in to see anything."""

    GROUP = "group"
    HOST = "host"
    NETWORK = "network"


class _EventStream(StreamingResponse):
    """The events of a viewer, until it leaves or its session ends."""

    def __init__(self, viewer: Viewer, may_see: Callable[[], bool]) -> None:
        super().__init__(viewer.events(may_see), media_type="text/event-stream")
        self._viewer = viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._viewer.close()


class Application:
    """The routes. Without `sessions` there is no log-in; without `control` nothing can be changed."""

    def __init__(
        self, feed: Feed, hider: Hider, sessions: Sessions | None, control: Control | None, visitors: Visitors
    ) -> None:
        self._feed = feed
        self._hider = hider
        self._sessions = sessions
        self._control = control
        self._visitors = visitors
        self._attempts = Attempts()
        self.asgi = Starlette(
            routes=[
                Route("/", self._page),
                Route("/api/session", self._session),
                Route("/api/events", self._events),
                Route("/api/export/{kind}.{form}", self._export),
                Route("/api/log-in", self._log_in, methods=["POST"]),
                Route("/api/log-out", self._log_out, methods=["POST"]),
                Route("/api/change/{method}", self._change, methods=["POST"]),
                Route("/api/{kind}", self._question),
                Mount("/static", StaticFiles(directory=_STATIC)),
            ],
            exception_handlers={
                Refused: _answer_refused,
                UserError: _answering(HTTPStatus.CONFLICT),
                TimeoutError: _answering(HTTPStatus.REQUEST_TIMEOUT, "the request is incomplete"),
                ClientDisconnect: _answering(HTTPStatus.REQUEST_TIMEOUT, "the request is incomplete"),
                Exception: _answering(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; see the log"),
            },
        )

    async def _page(self, _: Request) -> Response:
        return FileResponse(_STATIC / "index.html")

    async def _session(self, request: Request) -> Response:
        session = self._session_of(request)
        return JSONResponse(
            {
                "version": version(),
                "may_log_in": self._sessions is not None,
                "logged_in": session is not None,
                "sees": self._visitors is not Visitors.NETWORK or session is not None,
                "sees_addresses": self._sees_addresses(session),
                "may_change": self._control is not None and session is not None,
            }
        )

    async def _events(self, request: Request) -> Response:
        session = self._viewer(request)
        sees_addresses = self._sees_addresses(session)
        hidden = request.query_params.get("hidden") == "true" or not sees_addresses
        try:
            viewer = self._feed.open(hidden=hidden, is_stranger=not sees_addresses)
        except Busy as error:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many viewers") from error
        return _EventStream(viewer, lambda: session is None or self._session_of(request) is not None)

    async def _question(self, request: Request) -> Response:
        body = await self._answer(KINDS, request.path_params["kind"], request, as_json)
        return Response(body, media_type="application/json")

    async def _export(self, request: Request) -> Response:
        name, form = request.path_params["kind"], request.path_params["form"]
        if form not in {"csv", "json"}:
            raise Refused(HTTPStatus.NOT_FOUND, "allowed: csv, json")
        body = await self._answer(EXPORTS, name, request, as_json if form == "json" else TABLES.get(name, as_json))
        headers = {"Content-Disposition": f'attachment; filename="mptcp-throttle-{name}.{form}"'}
        return Response(body, headers=headers, media_type="application/json" if form == "json" else "text/csv")

    async def _answer(self, kinds: Mapping[str, Kind], name: str, request: Request, form: Form) -> bytes:
        kind = kinds.get(name)
        if kind is None:
            raise Refused(HTTPStatus.NOT_FOUND, f"allowed: {', '.join(kinds)}")
        sees_addresses = self._sees_addresses(self._viewer(request))
        asked = kind.parse(Question(request.query_params, sees_addresses, self._hider))
        hidden = request.query_params.get("hidden") == "true" or not sees_addresses
        try:
            return await self._feed.answer(kind, asked, form, hidden=hidden, is_stranger=not sees_addresses)
        except Busy as error:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many questions at a time") from error

    async def _log_in(self, request: Request) -> Response:
        if self._sessions is None:
            raise Refused(HTTPStatus.NOT_FOUND, "log-in is off: web.password_hash is not set")
        body = await _body(request)
        if not isinstance(body, dict) or not isinstance(body.get("password"), str):
            raise Refused(HTTPStatus.BAD_REQUEST, "password: is required")
        try:
            session = await self._sessions.log_in(body["password"], self._attempts)
        except TooManyAttempts as error:
            problem = f"too many attempts; try again in {error.seconds:.0f} s"
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, problem) from error
        if session is None:
            _log.info("log-in from %s refused: wrong password", _peer(request), extra=_ABOUT)
            raise Refused(HTTPStatus.FORBIDDEN, "wrong password")
        _log.info("log-in from %s: session %s", _peer(request), session.name, extra=_ABOUT)
        response = JSONResponse({"secret": session.secret})
        response.set_cookie(
            _COOKIE,
            session.cookie,
            max_age=int(SESSION_SECONDS),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    async def _log_out(self, request: Request) -> Response:
        session = self._logged_in(request)
        if self._sessions is not None:
            self._sessions.log_out(session)
        response = JSONResponse({})
        response.delete_cookie(_COOKIE, httponly=True, samesite="strict")
        return response

    async def _change(self, request: Request) -> Response:
        session = self._logged_in(request)
        if self._control is None:
            raise Refused(HTTPStatus.FORBIDDEN, "nothing can be changed here: web.control is not set")
        method, who = request.path_params["method"], f"session {session.name} from {_peer(request)}"
        try:
            body = await _body(request)
        except Refused as error:
            self._control.note_malformed(method, who, error)
            raise
        return JSONResponse(await self._control.change(method, body, who))

    def _session_of(self, request: Request) -> Session | None:
        if self._sessions is None:
            return None
        return self._sessions.find(request.cookies.get(_COOKIE, ""), request.headers.get(_SECRET, ""))

    def _viewer(self, request: Request) -> Session | None:
        """The session, None if not logged in. Raises Refused if this visitor may see nothing without."""
        return self._logged_in(request) if self._visitors is Visitors.NETWORK else self._session_of(request)

    def _logged_in(self, request: Request) -> Session:
        """The session of this request. Raises Refused without a log-in."""
        session = self._session_of(request)
        if session is None:
            raise Refused(HTTPStatus.UNAUTHORIZED, "log in first")
        return session

    def _sees_addresses(self, session: Session | None) -> bool:
        return self._visitors is Visitors.GROUP or session is not None


async def _body(request: Request) -> Any:  # noqa: ANN401
    try:
        return json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise Refused(HTTPStatus.BAD_REQUEST, "the request is not JSON") from error


def _peer(request: Request) -> str:
    return "the Unix socket" if request.client is None or not request.client.host else request.client.host


async def _answer_refused(_: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, Refused) else HTTPStatus.INTERNAL_SERVER_ERROR
    return JSONResponse({"problem": str(error)}, status)


def _answering(status: HTTPStatus, problem: str | None = None) -> Callable[[Request, Exception], Awaitable[Response]]:
    """A handler that answers with this problem, by default with the text of the exception."""

    async def answer(_: Request, error: Exception) -> Response:
        return JSONResponse({"problem": problem or str(error)}, status)

    return answer
