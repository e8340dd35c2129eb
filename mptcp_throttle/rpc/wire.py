"""What travels over JSON-RPC: connections as plain JSON objects, decoded once into the frozen model.

`{"token": "1a2b3c4d", "version": 1, "port": 8080, "subflows": [{"client": "10.1.0.2", "client_port": 40000,
"proxy": "10.3.0.2", "proxy_port": 8080, "address_id": 0, "backup": false, "backup_at_join": false,
"opened_at": 86400.25, "stalled": false}]}`
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from jsonrpclib.config import Config

from mptcp_throttle.model import Connection, FourTuple, Subflow, Token, format_token

Json = Any
"""What `json` can encode; checked where it is decoded."""

JSON_RPC: Final = Config(use_jsonclass=False)
"""What both ends tell pelix: plain JSON, no Python objects."""

MAX_TOP_CLIENTS: Final = 1000
"""The most clients of each network in an answer to `top`."""


MAX_EVENTS: Final = 1024
"""The most events that the daemon keeps for `events`."""


class Order(StrEnum):
    """What `top` sorts clients by, the largest first; by name, the smallest."""

    SENT = "sent"
    RECEIVED = "received"
    SUBFLOWS = "subflows"
    NAME = "name"


REFUSED: Final = 1
NOT_YET_APPLIED: Final = 2
"""Codes of errors. JSON-RPC 2.0, section 5.1, reserves -32768 to -32000; others belong to the application."""

MAX_LISTED_CLIENTS: Final = 10_000
"""The most clients in an answer to `clients`."""


class ClientOrder(StrEnum):
    """What `clients` sorts clients by, the largest first; by name, the smallest. `HELD`: by how long data waited."""

    SENT = "sent"
    RECEIVED = "received"
    SUBFLOWS = "subflows"
    NAME = "name"
    HELD = "held"


def encode_connection(connection: Connection) -> Json:
    """The JSON object of a connection."""
    return {
        "token": format_token(connection.token),
        "version": connection.version,
        "port": connection.port,
        "subflows": [encode_subflow(subflow) for subflow in connection.subflows],
    }


def encode_subflow(subflow: Subflow) -> dict[str, Json]:
    """The JSON object of a subflow."""
    return {
        "client": str(subflow.ends.client.address),
        "client_port": subflow.ends.client.port,
        "proxy": str(subflow.ends.proxy.address),
        "proxy_port": subflow.ends.proxy.port,
        "address_id": subflow.address_id,
        "backup": subflow.backup,
        "backup_at_join": subflow.backup_at_join,
        "opened_at": subflow.opened_at,
        "stalled": subflow.stalled,
    }


def decode_connection(data: Json) -> Connection:
    """The connection of a JSON object. Raises ValueError, KeyError or TypeError if it is not one."""
    return Connection(
        decode_token(data["token"]),
        int(data["version"]),
        int(data["port"]),
        tuple(_decode_subflow(subflow) for subflow in data["subflows"]),
    )


def decode_token(text: str) -> Token:
    """The token of its hexadecimal form. Raises ValueError."""
    return Token(int(text, 16))


def _decode_subflow(data: Json) -> Subflow:
    return Subflow(
        FourTuple.of(data["client"], int(data["client_port"]), data["proxy"], int(data["proxy_port"])),
        int(data["address_id"]),
        bool(data["backup"]),
        bool(data["backup_at_join"]),
        float(data["opened_at"]),
        bool(data["stalled"]),
    )
