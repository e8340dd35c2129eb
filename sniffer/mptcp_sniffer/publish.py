"""The published table, in the order of its changes, for readers that follow it.

A revision counts the changes of an epoch; each new table begins an epoch. Only the last change of each connection is
kept, however often it changes, and a bounded history of ended connections. A reader of another epoch, or a reader that
has missed an end that is no longer in the history, must resynchronise: no change is lost silently.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable
from itertools import takewhile
from typing import Final

from mptcp_sniffer.tracker import TableChange
from mptcp_throttle.model import Connection, Token, format_token
from mptcp_throttle.rpc import Json
from mptcp_throttle.rpc.wire import encode_connection

_MAX_WAIT_SECONDS: Final = 5.0
# Readers that wait at a time: few of the connections that bounded_server.py allows. Calls beyond that return at once.
_MAX_WAITING: Final = 16
_MAX_WAITING_DAEMONS: Final = 4
_MAX_PART: Final = 4096  # connections, 2 MB of JSON; the JSON of a whole table would take as much memory as the table


class PublishedTable:
    """The table as readers see it. One thread publishes, any number of threads read."""

    def __init__(self, history: int) -> None:
        self._changed = threading.Condition()
        self._history = history
        self._closed = False
        self._waiting = {False: 0, True: 0}
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._epoch = secrets.token_hex(8)
        self._revision = 0
        # Both in the order of revisions: each is that of the last change of its connection.
        self._connections: dict[Token, tuple[int, Connection]] = {}
        self._ended: OrderedDict[Token, int] = OrderedDict()
        self._last_forgotten = 0

    def publish(self, changes: Iterable[TableChange]) -> None:
        """Append changes and wake the readers."""
        with self._changed:
            for token, connection in changes:
                self._revision += 1
                self._connections.pop(token, None)
                self._ended.pop(token, None)
                if connection is not None:
                    self._connections[token] = self._revision, connection
                    continue
                self._ended[token] = self._revision
                if len(self._ended) > self._history:
                    _, self._last_forgotten = self._ended.popitem(last=False)
            self._changed.notify_all()

    def reset(self) -> None:
        """Begin a new epoch with an empty table."""
        with self._changed:
            self._begin_epoch()
            self._changed.notify_all()

    def close(self) -> None:
        """Let readers that wait return at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def position(self) -> dict[str, Json]:
        """`{epoch, revision}` of the present state."""
        with self._changed:
            return {"epoch": self._epoch, "revision": self._revision}

    def snapshot(self, after: int = -1) -> Json:
        """A part of the table: `{epoch, revision, connections, next}`, the connections with tokens above `after`.

        `next` is the `after` of the next part, null in the last one. All parts and then the changes since the revision
        of the first part give the table, whatever was published in between.
        """
        with self._changed:
            tokens = sorted(token for token in self._connections if token > after)
            connections = [self._connections[token][1] for token in tokens[:_MAX_PART]]
            position = self.position()
        return {
            **position,
            "connections": [encode_connection(connection) for connection in connections],
            "next": tokens[_MAX_PART - 1] if len(tokens) > _MAX_PART else None,
        }

    def changes(self, epoch: str, revision: int, timeout: float, *, to_daemon: bool = False) -> Json:
        """What changed after `revision`; if nothing has, waits up to `timeout` seconds for a change.

        `{epoch, revision, changes: [{token, connection}], more}` with the last state of each changed connection, null
        if it has ended; `more`: there are changes after this `revision`. Or `{resync: true}` if the reader must
        call `snapshot()`. Calls with `to_daemon` have their own limit of waiting readers.
        """
        # A value that is not a number raises here, before this reader counts as waiting. NaN gives 0.
        timeout = min(max(0.0, float(timeout)), _MAX_WAIT_SECONDS)
        with self._changed:
            if self._waiting[to_daemon] < (_MAX_WAITING_DAEMONS if to_daemon else _MAX_WAITING):
                self._waiting[to_daemon] += 1
                self._changed.wait_for(
                    lambda: self._closed or epoch != self._epoch or self._revision != revision, timeout
                )
                self._waiting[to_daemon] -= 1
            if epoch != self._epoch or not self._last_forgotten <= revision <= self._revision:
                return {"resync": True}
            unseen = self._after(revision)
            latest = self._revision
        part = unseen[:_MAX_PART]
        return {
            "epoch": epoch,
            "revision": part[-1][0] if len(part) < len(unseen) else latest,
            "changes": [
                {"token": format_token(token), "connection": None if c is None else encode_connection(c)}
                for _, token, c in part
            ],
            "more": len(part) < len(unseen),
        }

    def _after(self, revision: int) -> list[tuple[int, Token, Connection | None]]:
        """The last changes of the connections that have changed after this revision, in order."""
        live = takewhile(lambda item: item[1][0] > revision, reversed(self._connections.items()))
        ended = takewhile(lambda item: item[1] > revision, reversed(self._ended.items()))
        return sorted(
            [(at, token, connection) for token, (at, connection) in live] + [(at, token, None) for token, at in ended]
        )
