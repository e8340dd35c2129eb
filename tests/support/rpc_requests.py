"""JSON-RPC requests as the bytes that a client sends over a Unix socket."""

from __future__ import annotations

import json


def post(body: bytes, length: object = None) -> bytes:
    """An HTTP request with this body; `length` is what it says of it, if that is not the truth."""
    return f"POST / HTTP/1.0\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def request(method: str, *params: object, **extra: object) -> bytes:
    """A call of a method; `extra` are further members of the request object."""
    return post(json.dumps({"jsonrpc": "2.0", "method": method, "params": params, "id": 1, **extra}).encode())
