"""A connection to a server of the fleet: bounded in time and in what it reads, with TLS and a password."""

from __future__ import annotations

import errno
import secrets
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from mptcp_throttle.config.text_file import read_text_file
from mptcp_throttle.valkey.resp import ErrorReply, MalformedReply, Place, Reply, bulk, encoded, longest_value, replies
from mptcp_throttle.valkey.server import Credentials, Server, ServerUrl

CONNECT_SECONDS: Final = 2.0
_ABORT: Final = struct.pack("ii", 1, 0)
_CHUNK_BYTES: Final = 2**18
_MOST_BYTES_OF_SECRET: Final = 2**20
_MOST_BYTES_OF_STATUS: Final = 4096


class ValkeyError(Exception):
    """Why a server cannot be used, in one line."""


class RefusedReply(ValkeyError):
    """An answer is longer than allowed, or not RESP. The connection is closed.

    `place` is its longest value, for which that command is to blame, or what is not RESP.
    """

    def __init__(self, place: Place) -> None:
        super().__init__("the server's answer is too long, or not RESP")
        self.place = place


def read_secret(path: str) -> str:
    """The first line of a file. Raises ValkeyError with the name of the file."""
    try:
        secret = read_text_file(Path(path), _MOST_BYTES_OF_SECRET).partition("\n")[0].strip()
    except ValueError as error:
        raise ValkeyError(f"{path}: {error}") from error
    if not secret:
        raise ValkeyError(f"{path}: its first line is empty; allowed: a secret")
    return secret


class Connection:
    """To one server. What is sent at one time is answered within `seconds`, or the connection is closed."""

    def __init__(self, stream: socket.socket, server: Server, seconds: float) -> None:
        self._stream = stream
        self._seconds = seconds
        self.server = server

    @classmethod
    def open(cls, server: Server, url: ServerUrl, credentials: Credentials, seconds: float) -> Self:
        """A connection by which commands are permitted. Raises ValkeyError."""
        password = None if credentials.password is None else read_secret(credentials.password)
        context = _context(credentials) if url.is_encrypted else None
        try:
            stream = socket.create_connection(server, CONNECT_SECONDS)
        except (OSError, UnicodeError) as error:  # the latter for a name like `a..b`
            raise ValkeyError(f"{server}: {_reason(error)}") from error
        try:
            if context is not None:
                stream = context.wrap_socket(stream, server_hostname=server.host)
            connection = cls(stream, server, seconds)
            connection._enter(url.user, password)
        except (OSError, ValueError) as error:
            stream.close()
            raise ValkeyError(f"{server}: {_reason(error)}") from error
        except ValkeyError:
            stream.close()
            raise
        return connection

    def _enter(self, user: str | None, password: str | None) -> None:
        words = [] if user is None else [user.encode()]
        if words or password is not None:
            # A user without a password (`nopass`) takes any.
            words.append((password or "").encode())
        commands = [*([encoded(b"AUTH", *words)] if words else []), encoded(b"PING")]
        for reply in self._first_replies(commands):
            if isinstance(reply, ErrorReply):
                raise ValkeyError(f"{self.server}: {reply.text}")

    def _first_replies(self, commands: Sequence[bytes]) -> list[Reply]:
        """The replies to commands that the server may not permit. Raises OSError and RefusedReply."""
        deadline = time.monotonic() + self._seconds
        self._stream.settimeout(self._seconds)
        self._stream.sendall(b"".join(commands))
        data = b""
        while True:
            data += self._received(deadline)
            try:
                return replies(data, len(commands))
            except MalformedReply as error:
                if len(data) > _MOST_BYTES_OF_STATUS:
                    raise _refused(data, len(commands)) from error

    def ask(self, commands: Sequence[bytes], most_bytes: int) -> list[Reply]:
        """The replies to encoded commands, as `replies_to`. Raises ValkeyError."""
        data = self.replies_to(b"".join(commands), len(commands), most_bytes)
        return self.parsed(data, len(commands))

    def parsed(self, data: bytes, number: int) -> list[Reply]:
        """The replies of which `replies_to` gave the bytes. Raises RefusedReply."""
        try:
            return replies(data, number)
        except MalformedReply as error:
            self.close()
            raise _refused(data, number) from error

    def replies_to(self, commands: bytes, number: int, most_bytes: int) -> bytes:
        """The bytes of the replies to `number` encoded commands, up to `most_bytes`.

        Raises ValkeyError, after which the connection is closed; RefusedReply if there are more bytes.
        """
        # A random word: no stored value can look like the end of the answer.
        word = secrets.token_hex(8).encode()
        end = bulk(word)
        try:
            deadline = time.monotonic() + self._seconds
            self._stream.settimeout(self._seconds)
            self._stream.sendall(commands + encoded(b"PING", word))
            data = bytearray()
            while not data.endswith(end):
                if len(data) > most_bytes + len(end):
                    self.close()
                    raise _refused(bytes(data), number)
                data += self._received(deadline)
        except OSError as error:
            self.close()
            raise ValkeyError(f"{self.server}: {_reason(error)}") from error
        return bytes(data.removesuffix(end))

    def _received(self, deadline: float) -> bytes:
        """What comes next before then. Raises OSError."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._stream.settimeout(left)
        data = self._stream.recv(_CHUNK_BYTES)
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the server has closed the connection")
        return data

    def close(self) -> None:
        """Close it; it may be closed already. What the server has not received never arrives.

        The kernel would go on to send it, for minutes: an old total would come after newer ones of the next connection.
        """
        with suppress(OSError):
            self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self._stream.close()


def _refused(data: bytes, number: int) -> RefusedReply:
    """Which of `number` commands is to blame; the last one, if there are more replies."""
    place = longest_value(data)
    return RefusedReply(place if place.number < number else Place(number - 1))


def _context(credentials: Credentials) -> ssl.SSLContext:
    """What checks the server's certificate and its name. Raises ValkeyError with the name of a file."""
    try:
        context = ssl.create_default_context(cafile=credentials.authority)
    except (OSError, ValueError) as error:
        raise ValkeyError(f"{credentials.authority}: is no certificate in PEM: {_reason(error)}") from error
    if credentials.certificate is not None:
        try:
            # Without a callback, OpenSSL asks for the password of an encrypted key on the terminal.
            context.load_cert_chain(credentials.certificate, credentials.key, password="")
        except (OSError, ValueError) as error:
            names = f"{credentials.certificate}, {credentials.key}"
            raise ValkeyError(f"{names}: are no certificate and its key in PEM: {_reason(error)}") from error
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "does not answer"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
