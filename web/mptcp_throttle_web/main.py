"""`mptcp-throttle-web`: the command line, the listeners, and their end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvicorn

from mptcp_throttle import logs, service, systemd
from mptcp_throttle.bounded_server import bind_unix_socket
from mptcp_throttle.command_line import command_line
from mptcp_throttle.config.load import load_config
from mptcp_throttle.config.password_hash import PasswordHash
from mptcp_throttle.errors import UserError
from mptcp_throttle.rpc import Json, RpcClient
from mptcp_throttle.systemd import Watchdog
from mptcp_throttle_web.application import Application, Visitors
from mptcp_throttle_web.connections import MAX_HEAD_BYTES, BoundedProtocol, TlsHandshake
from mptcp_throttle_web.control import Control
from mptcp_throttle_web.feed import Feed
from mptcp_throttle_web.guard import Guard
from mptcp_throttle_web.hiding import Hider
from mptcp_throttle_web.questions import Ask
from mptcp_throttle_web.sessions import Sessions

if TYPE_CHECKING:
    from mptcp_throttle.config.schema import Config, ListenAddress, SocketGroup

_log = logging.getLogger("mptcp-throttle-web")

_CALL_SECONDS: Final = 10.0
# The backlog of a listener in the kernel; uvicorn also accepts so many at once.
_QUEUED_CONNECTIONS: Final = 128
_CLOSE_SECONDS: Final = 1
_GROUP_CONNECTIONS: Final = 64
_TCP_CONNECTIONS: Final = 192
_WATCH_SECONDS: Final = 1.0


class _Server(uvicorn.Server):
    """A server that leaves signals to `_serve`, and calls `note_started` when it listens."""

    def __init__(self, config: uvicorn.Config, note_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._note_started = note_started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._note_started()


def _unix_listener(path: Path, group: SocketGroup | None) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    bind_unix_socket(lambda: listener.bind(str(path)), path, group)
    return listener


def _tcp_listener(address: ListenAddress) -> socket.socket:
    family = socket.AF_INET6 if address.host.version == 6 else socket.AF_INET
    try:
        return socket.create_server((str(address.host), address.port), family=family)
    except OSError as error:
        problem = f"web.listen: {address}: cannot be used: {os.strerror(error.errno or 0)}"
        raise UserError(problem, os.EX_UNAVAILABLE) from error


def _kept_connections(daemon: Path) -> Ask:
    """Calls the daemon by as many connections as there are calls at the same time; later calls use them again."""
    idle: list[RpcClient] = []

    def ask(method: str, *parameters: Json) -> Json:
        try:
            client = idle.pop()
        except IndexError:
            client = RpcClient(daemon, _CALL_SECONDS, keep=True)
        try:
            return client.call(method, *parameters)
        finally:
            idle.append(client)

    return ask


def _tls_context(config: Config) -> ssl.SSLContext | None:
    """None without a certificate. Raises UserError."""
    for key, path in (("certificate", config.web.certificate), ("key", config.web.key)):
        if path is not None and not os.access(path, os.R_OK):
            raise UserError(f"web.{key}: {path}: cannot be read", os.EX_NOPERM)
    if config.web.certificate is None or config.web.key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(config.web.certificate, config.web.key)
    except ssl.SSLError as error:
        problem = f"web.certificate: {config.web.certificate}: is not a PEM certificate that matches web.key"
        raise UserError(problem, os.EX_CONFIG) from error
    return context


async def _serve(config: Config, tls: ssl.SSLContext | None) -> None:
    web, hider = config.web, Hider()
    feed = Feed(_kept_connections(config.sockets.daemon), hider)
    sessions = None if web.password_hash is None else Sessions(web.password_hash)
    control = Control(feed.call, hider) if web.control else None
    waiting = {"listeners": 1 + (web.listen is not None)}

    def note_started() -> None:
        waiting["listeners"] -= 1
        if not waiting["listeners"]:
            where = "" if web.listen is None else f", on {'http' if tls is None else 'https'}://{web.listen}"
            _log.info("the page is on %s%s", config.sockets.web, where)
            systemd.notify("READY=1")

    def server(visitors: Visitors, most: int, tls: ssl.SSLContext | None = None) -> _Server:
        application = Application(feed, hider, sessions, control, visitors)
        names = [*web.names, *(() if web.listen is None else (str(web.listen.host),))]
        protocol = BoundedProtocol.for_listener(most)
        settings = uvicorn.Config(
            Guard(application.asgi, names),
            http=protocol if tls is None else TlsHandshake.before(protocol, tls),
            backlog=_QUEUED_CONNECTIONS,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_graceful_shutdown=_CLOSE_SECONDS,
        )
        return _Server(settings, note_started)

    listeners = [(server(Visitors.GROUP, _GROUP_CONNECTIONS), _unix_listener(config.sockets.web, config.socket_group))]
    if web.listen is not None:
        visitors = Visitors.HOST if web.listen.host.is_loopback else Visitors.NETWORK
        tcp = server(visitors, _TCP_CONNECTIONS, tls)
        listeners.append((tcp, _tcp_listener(web.listen)))

    def stop() -> None:
        feed.close()
        for listening, _ in listeners:
            listening.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    watching = asyncio.create_task(_watch())
    try:
        await asyncio.gather(*(listening.serve([listener]) for listening, listener in listeners))
    finally:
        watching.cancel()
        systemd.notify("STOPPING=1")
        with contextlib.suppress(OSError):
            config.sockets.web.unlink()


async def _watch() -> None:
    watchdog = Watchdog()
    while True:
        watchdog.alive()
        await asyncio.sleep(_WATCH_SECONDS)


def _new_password() -> None:
    password = secrets.token_urlsafe(32)
    sys.stdout.write(
        f"The password for the log-in; it is not shown again:\n  {password}\n"
        f"Its hash for web.password_hash in mptcp-throttle.yaml:\n  {PasswordHash.of(password)}\n"
    )


def parser() -> argparse.ArgumentParser:
    """The command line; the manual page is made from it."""
    made = command_line("mptcp-throttle-web", "Serve a page that shows what mptcp-throttled does.")
    made.add_argument("--new-password", action="store_true", help="print a new password and its hash, and exit")
    return made


def _main(arguments: Sequence[str] | None) -> None:
    options = parser().parse_args(arguments)
    if options.new_password:
        _new_password()
        return
    logs.configure()
    config = load_config(options.config)
    logs.set_level(config.log_level)
    # Their lines contain what clients send, which may be anything.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    tls = _tls_context(config)
    with service.single_instance(config.sockets.web.parent, "mptcp-throttle-web", config.socket_group):
        asyncio.run(_serve(config, tls))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service; the exit status is one of those in `mptcp_throttle.errors`."""
    return service.run(lambda: _main(arguments))


if __name__ == "__main__":
    sys.exit(main())
