"""The published table, in the order of its changes, for readers that follow it.

A revision counts the changes of an epoch; each new table begins an epoch. Only the last change of each connection is
kept, however often it changes, and a bounded history of ended connections. A reader of another epoch, or a reader that
has missed an end that is no longer in the history, must resynchronise: no change is lost silently.

A reader may give a patience: how old a connection must be before the reader is told of it. A new connection is unknown
until some reader is told of it, which gives it a new revision. A connection that ends while unknown is no change.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
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
    """The table as readers see it. One thread publishes, any number of threads read.

    `clock` gives monotonic seconds.
    """

    def __init__(self, history: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._history = history
        self._closed = False
        self._waiting = {False: 0, True: 0}
        self._impatient = 0
        self.is_patient = False
        """Whether the daemon's last call gave a patience."""
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._epoch = secrets.token_hex(8)
        self._revision = 0
        # Both in the order of revisions: each is that of the last change of its connection.
        self._connections: dict[Token, tuple[int, Connection]] = {}
        self._ended: OrderedDict[Token, int] = OrderedDict()
        self._last_forgotten = 0
        self._unknown: OrderedDict[Token, float] = OrderedDict()
        self._last_known_change = 0

    def publish(self, changes: Iterable[TableChange]) -> None:
        """Append changes and wake the readers that they concern."""
        with self._changed:
            now, before = self._clock(), self._last_known_change
            for token, connection in changes:
                self._publish(token, connection, now)
            if self._impatient:
                self._make_known(math.inf)
            if self._last_known_change != before:
                self._changed.notify_all()

    def _publish(self, token: Token, connection: Connection | None, now: float) -> None:
        was_there = self._connections.pop(token, None) is not None
        if connection is None and (self._unknown.pop(token, None) is not None or not was_there):
            return
        is_new = not was_there and self._ended.pop(token, None) is None
        if is_new:
            self._unknown[token] = now
        self._revision += 1
        if token not in self._unknown:
            self._last_known_change = self._revision
        if connection is not None:
            self._connections[token] = self._revision, connection
            return
        self._ended[token] = self._revision
        if len(self._ended) > self._history:
            _, self._last_forgotten = self._ended.popitem(last=False)

    def _make_known(self, until: float) -> None:
        """Let readers be told of connections that were first published by `until`, in monotonic seconds."""
        while self._unknown and next(iter(self._unknown.values())) <= until:
            token, _ = self._unknown.popitem(last=False)
            self._revision = self._last_known_change = self._revision + 1
            self._connections[token] = self._revision, self._connections.pop(token)[1]

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

    def knows(self, token: Token) -> bool:
        """Whether the connection is live, and a reader has been told of it."""
        with self._changed:
            return token in self._connections and token not in self._unknown

    def snapshot(self, after: int = -1) -> Json:
        """A part of the table: `{epoch, revision, connections, next}`, the connections with tokens above `after`.

        `next` is the `after` of the next part, null in the last one. All parts and then the changes since the revision
        of the first part give the table, whatever was published in between.
        """
        with self._changed:
            self._make_known(math.inf)
            tokens = sorted(token for token in self._connections if token > after)
            connections = [self._connections[token][1] for token in tokens[:_MAX_PART]]
            position = self.position()
        return {
            **position,
            "connections": [encode_connection(connection) for connection in connections],
            "next": tokens[_MAX_PART - 1] if len(tokens) > _MAX_PART else None,
        }

    def changes(
        self, epoch: str, revision: int, timeout: float, patience: float = 0.0, *, to_daemon: bool = False
    ) -> Json:
        """What changed after `revision`; if nothing has, waits up to `timeout` seconds for a change.

        `{epoch, revision, changes: [{token, connection}], more}` with the last state of each changed connection, null
        if it has ended; `more`: there are changes after this `revision`. Or `{resync: true}` if the reader must
        call `snapshot()`. A new connection is left out until it is `patience` seconds old, unless another reader has
        been told of it. Calls with `to_daemon` have their own limit of waiting readers.
        """
        # A value that is not a number raises here, before this reader counts as waiting. NaN gives 0.
        timeout, patience = (min(max(0.0, float(seconds)), _MAX_WAIT_SECONDS) for seconds in (timeout, patience))
        with self._changed:
            if to_daemon:
                self.is_patient = patience > 0
            if self._waiting[to_daemon] < (_MAX_WAITING_DAEMONS if to_daemon else _MAX_WAITING):
                self._waiting[to_daemon] += 1
                self._impatient += not patience
                self._wait(epoch, revision, timeout, patience)
                self._impatient -= not patience
                self._waiting[to_daemon] -= 1
            self._make_known(self._clock() - patience)
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

    def _wait(self, epoch: str, revision: int, timeout: float, patience: float) -> None:
        """Wait until there is something to tell a reader of this `revision`, for `timeout` seconds at most."""
        now = self._clock()
        end = now + timeout
        while now < end:
            self._make_known(now - patience)
            if self._closed or epoch != self._epoch or self._last_known_change > revision or revision > self._revision:
                return
            # Wake up when the oldest unknown connection is old enough; without patience, `publish` wakes the reader.
            oldest = next(iter(self._unknown.values()), now if patience else math.inf)
            self._changed.wait(min(end, oldest + patience) - now)
            now = self._clock()

    def _after(self, revision: int) -> list[tuple[int, Token, Connection | None]]:
        """The last changes of the known connections that have changed after this revision, in order."""
        live = takewhile(lambda item: item[1][0] > revision, reversed(self._connections.items()))
        ended = takewhile(lambda item: item[1] > revision, reversed(self._ended.items()))
        return sorted(
            [(at, token, connection) for token, (at, connection) in live if token not in self._unknown]
            + [(at, token, None) for token, at in ended]
        )
