"""What the tracker reports about connections: the service logs it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from mptcp_throttle.model import Subflow, Token


class EventKind(StrEnum):
    """What can happen to a connection or a subflow."""

    OPENED = "opened"
    """The connection has its first live subflow; `detail`: how it is known, if not from an MP_CAPABLE handshake."""

    JOINING = "joining"
    """The proxy has answered the SYN of a JOIN, which is not yet authenticated."""

    FAILED = "failed"
    """The JOIN was refused, or has not been authenticated in time; `detail`: why."""

    ESTABLISHED = "established"
    """The subflow is live; `detail`: how it is known, if not from its handshake."""

    BACKUP_CHANGED = "backup-changed"
    """The subflow has become a backup, or a regular one; `detail`: by whom."""

    ADDRESS_OFFERED = "address-offered"
    """An ADD_ADDR came on this subflow; `detail`: address id, address, port and sender."""

    STALLED = "stalled"
    """The proxy's kernel retransmits repeatedly without an answer, or has closed the subflow; `detail`: which."""

    RECOVERED = "recovered"
    """The subflow is no longer stalled."""

    CLOSED = "closed"
    """The subflow is no longer live; `detail`: why."""

    ENDED = "ended"
    """The connection has no live subflow left."""


class Event(NamedTuple):
    """What happened to a connection, or to a `subflow` of it, at `at` by the tracker's clock.

    `version` is None for a JOIN that has failed: its connection may be forgotten.
    """

    at: float
    kind: EventKind
    token: Token
    version: int | None
    subflow: Subflow | None
    detail: str
