"""A port for a server that is started next."""

from __future__ import annotations

import socket
from contextlib import closing


def free_port() -> int:
    """A TCP port of loopback on which no program listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])
