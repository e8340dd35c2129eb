"""The published table: its present state, and a bounded history of changes for readers that follow it.

A revision counts the changes of an epoch; each new table begins an epoch. A reader of another epoch, or one whose
revision is no longer in the history, is told to resynchronise: no change is lost silently.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from mptcp_sniffer.tracker import TableChange
from mptcp_throttle.model import Connection, Token, format_token
from mptcp_throttle.rpc import Json
from mptcp_throttle.rpc.wire import encode_connection

_MAX_WAIT_SECONDS: Final = 5.0
_MAX_WAITING: Final = 16  # a quarter of the connections that rpc/server.py allows; further calls return at once
_MAX_PART: Final = 4096  # connections, 2 MB of JSON; the JSON of a whole table would take as much memory as the table


class PublishedTable:
    """The table as readers see it. One thread publishes, any number of threads read."""

    def __init__(self, history: int) -> None:
        self._changed = threading.Condition()
        self._history: deque[TableChange] = deque(maxlen=history)
        self._closed = False
        self._waiting = 0
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._epoch = secrets.token_hex(8)
        self._revision = 0
        self._connections: dict[Token, Connection] = {}
        self._history.clear()

    def publish(self, changes: Iterable[TableChange]) -> None:
        """Append changes and wake the readers."""
        with self._changed:
            for change in changes:
                if change.connection is None:
                    self._connections.pop(change.token, None)
                else:
                    self._connections[change.token] = change.connection
                self._history.append(change)
                self._revision += 1
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
            connections = [self._connections[token] for token in tokens[:_MAX_PART]]
            position = {"epoch": self._epoch, "revision": self._revision}
        return {
            **position,
            "connections": [encode_connection(connection) for connection in connections],
            "next": tokens[_MAX_PART - 1] if len(tokens) > _MAX_PART else None,
        }

    def changes(self, epoch: str, revision: int, timeout: float) -> Json:
        """What changed after `revision`; if nothing has, waits up to `timeout` seconds for a change.

        `{epoch, revision, changes: [{token, connection}]}` with the last state of each changed connection, null for
        one that has ended; or `{resync: true}` if the reader must call `snapshot()`.
        """
        with self._changed:
            if self._waiting < _MAX_WAITING:
                self._waiting += 1
                self._changed.wait_for(
                    lambda: self._closed or epoch != self._epoch or self._revision != revision,
                    min(max(timeout, 0.0), _MAX_WAIT_SECONDS),
                )
                self._waiting -= 1
            behind = self._revision - revision
            if epoch != self._epoch or not 0 <= behind <= len(self._history):
                return {"resync": True}
            # From the end: a deque is slow in the middle, and the unseen part is short.
            unseen = list(islice(reversed(self._history), behind))
            latest = {change.token: change.connection for change in reversed(unseen)}
            position = {"epoch": self._epoch, "revision": self._revision}
        return {
            **position,
            "changes": [
                {"token": format_token(token), "connection": None if c is None else encode_connection(c)}
                for token, c in latest.items()
            ],
        }
