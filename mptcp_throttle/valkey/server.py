"""Where the servers of a fleet are, `valkeys://user@host:port,host:port`, and how both ends prove who they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, NamedTuple, Self

URL_SYNTAX: Final = (
    "valkeys://HOST, or valkey://HOST without TLS on loopback; also USER@ before it, :PORT behind it, and up to 5 hosts"
    " with commas between them"
)

_MAX_SERVERS: Final = 5
_PORT: Final = 6379
_URL: Final = re.compile(r"(valkeys?)://(?:([A-Za-z0-9_.-]{1,64})@)?([^/@?#\s]+)", re.ASCII)
_SERVER: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9.-]{1,253}))(?::([0-9]{1,5}))?", re.ASCII | re.IGNORECASE)


class Server(NamedTuple):
    """A host, by its name or address, and a TCP port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `HOST` or `HOST:PORT`; an IPv6 address is in brackets. Raises ValueError."""
        match = _SERVER.fullmatch(text)
        if match is None or not 0 < int(match[3] or _PORT) < 65536:
            raise ValueError("is no server")
        if match[1]:
            ip_address(match[1])
        return cls(match[1] or match[2], int(match[3] or _PORT))

    @property
    def is_loopback(self) -> bool:
        """Whether what is sent to it stays on this host."""
        with suppress(ValueError):
            return ip_address(self.host).is_loopback
        return self.host.lower() == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """The servers, of which one takes writes and the others are its replicas, and the user; None: the default one."""

    servers: tuple[Server, ...]
    user: str | None
    is_encrypted: bool

    @classmethod
    def parse(cls, text: str) -> Self:
        """From a text as in `URL_SYNTAX`. Raises ValueError with what is allowed."""
        allowed = f"allowed: {URL_SYNTAX}"
        match = _URL.fullmatch(text)
        if match is None:
            raise ValueError(f"is no address of a server; {allowed}")
        try:
            servers = tuple(_servers(match[3]))
        except ValueError as error:
            raise ValueError(f"is no address of a server; {allowed}") from error
        if len(servers) > _MAX_SERVERS:
            raise ValueError(f"has {len(servers)} hosts; {allowed}")
        is_encrypted = match[1] == "valkeys"
        if not is_encrypted and not all(server.is_loopback for server in servers):
            raise ValueError(f"is not encrypted, and not on loopback; {allowed}")
        return cls(servers, match[2], is_encrypted)

    def __str__(self) -> str:
        user = "" if self.user is None else f"{self.user}@"
        return f"valkey{'s' * self.is_encrypted}://{user}{','.join(map(str, self.servers))}"


def _servers(text: str) -> Iterator[Server]:
    yield from map(Server.parse, text.split(","))


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files: a password of one line; in PEM, the authority of the server (None: those of this host), and the
    certificate and key of this one. They are read at each connection, and so may be renewed."""

    password: str | None = None
    authority: str | None = None
    certificate: str | None = None
    key: str | None = None
