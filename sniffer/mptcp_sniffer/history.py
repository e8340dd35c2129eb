"""Everything that happened to every connection, closed ones included: what `--read` prints of a capture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mptcp_sniffer.tracker import Event, Kind
from mptcp_throttle.model import FourTuple, Subflow, Token, format_token
from mptcp_throttle.rpc.wire import encode_subflow

if TYPE_CHECKING:
    from mptcp_throttle.rpc import Json


class History:
    """Listens to a tracker. It grows with what it hears: for captures, not for services."""

    def __init__(self) -> None:
        self._connections: list[dict[str, Json]] = []
        self._open: dict[Token, dict[str, Json]] = {}
        self._subflows: dict[tuple[Token, FourTuple], dict[str, Json]] = {}
        self._events: list[Json] = []

    def record(self, event: Event) -> None:
        """Take one event; to be given to the tracker as its listener."""
        self._events.append(_encode_event(event))
        match event:
            case Event(kind=Kind.OPENED) if event.token not in self._open:
                connection: dict[str, Json] = {
                    "token": format_token(event.token),
                    "version": event.version,
                    "opened_at": event.at,
                    "ended_at": None,
                    "subflows": [],
                }
                self._open[event.token] = connection
                self._connections.append(connection)
            case Event(kind=Kind.OPENED):
                self._open[event.token]["ended_at"] = None
            case Event(kind=Kind.ENDED):
                self._open[event.token]["ended_at"] = event.at
            case Event(subflow=Subflow() as subflow):
                self._record_subflow(event, subflow)

    def _record_subflow(self, event: Event, subflow: Subflow) -> None:
        key = event.token, subflow.ends
        known = self._subflows.get(key)
        if known is None or known["opened_at"] != subflow.opened_at:
            known = {"established": False, "state": "joining", "closed_at": None, "reason": ""}
            self._subflows[key] = known
            self._open[event.token]["subflows"].append(known)
        known |= encode_subflow(subflow)
        match event.kind:
            case Kind.CLOSED:
                known |= {"state": "closed", "closed_at": event.at, "reason": event.detail}
            case Kind.ESTABLISHED | Kind.BACKUP_CHANGED:
                known |= {"established": True, "state": "backup" if subflow.backup else "active"}

    def as_json(self) -> dict[str, Json]:
        """`{connections: [{token, version, opened_at, ended_at, subflows}], events: [{at, event, token, ...}]}`.

        A subflow has what the service publishes of it, and `established`, `state` (joining, active, backup or
        closed), `closed_at` and the `reason` of its end.
        """
        return {"connections": self._connections, "events": self._events}


def _encode_event(event: Event) -> Json:
    subflow = {} if event.subflow is None else encode_subflow(event.subflow)
    return {"at": event.at, "event": event.kind, "token": format_token(event.token), **subflow, "detail": event.detail}
