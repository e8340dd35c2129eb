"""Follows the sniffer's table over JSON-RPC: snapshot, then changes by long poll.

Without the sniffer nothing is known to be alive, and a cap needs a live preferred path (I2): as soon as a call fails,
an empty table is delivered, which lifts all caps, and the connection is tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mptcp_throttle.model import Connection, Token
from mptcp_throttle.rpc import Json, RpcClient, RpcError
from mptcp_throttle.wire import decode_connection, decode_token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_POLL_SECONDS: Final = 1.0
_CALL_SECONDS: Final = 3.0
_RETRY_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class TableView:
    """The sniffer's table at one revision; `problem` says why there is none."""

    epoch: str = ""
    revision: int = 0
    connections: Mapping[Token, Connection] = field(default_factory=dict)
    problem: str | None = "not connected yet"


class Puller(threading.Thread):
    """Calls `deliver` with every new view of the table, from this thread, until `stop()`."""

    def __init__(self, sniffer_socket: Path, deliver: Callable[[TableView], None]) -> None:
        super().__init__(name="pull", daemon=True)
        self._client = RpcClient(sniffer_socket, _CALL_SECONDS)
        self._deliver = deliver
        self._stopping = threading.Event()
        self._problem: str | None = None

    def stop(self) -> None:
        """Stop, at the latest when the current call ends."""
        self._stopping.set()
        self._client.interrupt()
        self.join()

    def run(self) -> None:
        """Follow the table."""
        while not self._stopping.is_set():
            try:
                self._follow()
            except (RpcError, ValueError, KeyError, TypeError, AttributeError) as error:
                if str(error) != self._problem and not self._stopping.is_set():
                    self._problem = str(error)
                    self._deliver(TableView(problem=self._problem))
                self._stopping.wait(_RETRY_SECONDS)

    def _follow(self) -> None:
        view = _decode_snapshot(self._client.call("snapshot"))
        self._problem = None
        self._deliver(view)
        while not self._stopping.is_set():
            answer = self._client.call("changes", view.epoch, view.revision, _POLL_SECONDS)
            if answer.get("resync"):
                return
            if answer["changes"]:
                view = _apply(view, answer)
                self._deliver(view)


def _decode_snapshot(data: Json) -> TableView:
    connections = (decode_connection(item) for item in data["connections"])
    return TableView(data["epoch"], data["revision"], {c.token: c for c in connections}, None)


def _apply(view: TableView, answer: Json) -> TableView:
    connections = dict(view.connections)
    for change in answer["changes"]:
        token = decode_token(change["token"])
        if change["connection"] is None:
            connections.pop(token, None)
        else:
            connections[token] = decode_connection(change["connection"])
    return TableView(answer["epoch"], answer["revision"], connections, None)
