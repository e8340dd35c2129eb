"""All connections of a capture, closed ones included, with everything that happened to them."""

from __future__ import annotations

from mptcp_sniffer.events import Event, EventKind
from mptcp_throttle.model import FourTuple, Subflow, Token, format_token
from mptcp_throttle.rpc import Json
from mptcp_throttle.rpc.wire import encode_subflow


class CaptureRecord:
    """Records the events of a tracker. Its memory is not bounded: for capture files, not for services."""

    def __init__(self) -> None:
        self._connections: list[dict[str, Json]] = []
        self._by_token: dict[Token, dict[str, Json]] = {}
        self._subflows: dict[tuple[Token, FourTuple], dict[str, Json]] = {}
        self._events: list[Json] = []

    def add(self, event: Event) -> None:
        """Add one event; the `on_event` of a tracker."""
        self._events.append(_encode_event(event))
        match event:
            case Event(kind=EventKind.OPENED) if event.token not in self._by_token:
                connection: dict[str, Json] = {
                    "token": format_token(event.token),
                    "version": event.version,
                    "opened_at": event.at,
                    "ended_at": None,
                    "subflows": [],
                }
                self._by_token[event.token] = connection
                self._connections.append(connection)
            case Event(kind=EventKind.OPENED):
                self._by_token[event.token]["ended_at"] = None
            case Event(kind=EventKind.ENDED):
                self._by_token[event.token]["ended_at"] = event.at
            case Event(subflow=Subflow() as subflow):
                self._record_subflow(event, subflow)

    def _record_subflow(self, event: Event, subflow: Subflow) -> None:
        key = event.token, subflow.ends
        known = self._subflows.get(key)
        if known is None or known["opened_at"] != subflow.opened_at:
            known = {"established": False, "state": "joining", "closed_at": None, "reason": ""}
            self._subflows[key] = known
            self._by_token[event.token]["subflows"].append(known)
        known |= encode_subflow(subflow)
        match event.kind:
            case EventKind.CLOSED:
                known |= {"state": "closed", "closed_at": event.at, "reason": event.detail}
            case EventKind.FAILED:
                known |= {"state": "failed", "closed_at": event.at, "reason": event.detail}
            case EventKind.ESTABLISHED | EventKind.BACKUP_CHANGED:
                known |= {"established": True, "state": "backup" if subflow.backup else "active"}

    def as_json(self) -> dict[str, Json]:
        """`{connections: [{token, version, opened_at, ended_at, subflows}], events: [{at, event, token, ...}]}`.

        A subflow has the published keys and `established`, `state` (joining, failed, active, backup or closed),
        `closed_at` and the `reason` for its end.
        """
        return {"connections": self._connections, "events": self._events}


def _encode_event(event: Event) -> Json:
    subflow = {} if event.subflow is None else encode_subflow(event.subflow)
    return {"at": event.at, "event": event.kind, "token": format_token(event.token), **subflow, "detail": event.detail}
