"""A connection to the first of several servers that answers."""

from __future__ import annotations

from mptcp_throttle.valkey.connection import Connection, ValkeyError
from mptcp_throttle.valkey.server import Credentials, Server, ServerUrl


def connect(url: ServerUrl, credentials: Credentials, seconds: float, attempt: int = 0) -> Connection:
    """A connection whose answers take up to `seconds`; each `attempt` begins with the next server.

    Raises ValkeyError, for the first server of `url` if none answers: in each attempt the same.
    """
    first = attempt % len(url.servers)
    problems: dict[Server, ValkeyError] = {}
    for server in (*url.servers[first:], *url.servers[:first]):
        try:
            return Connection.open(server, url, credentials, seconds)
        except ValkeyError as error:
            problems[server] = error
    raise problems[url.servers[0]]
