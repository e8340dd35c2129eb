"""Follows the sniffer's table over JSON-RPC: the whole table in parts, then changes by long poll.

Without the sniffer no path is known to be live, and a cap needs a live preferred path (I2). So when calls fail for a
second, or one has no answer for three, an empty table is delivered, which frees all subflows. Calls are tried again.
Under load, one answer has all changes since the last one, and updates that the control loop has not taken yet are
merged.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, Protocol

from mptcp_throttle.features import FeatureName
from mptcp_throttle.model import Connection, Token
from mptcp_throttle.rpc import Json, RpcClient
from mptcp_throttle.rpc.wire import decode_connection, decode_token
from mptcp_throttled.vocabulary.clock import Clock
from mptcp_throttled.vocabulary.snapshot import Snapshot

_POLL_SECONDS: Final = 1.0
_CALL_SECONDS: Final = 3.0
_RETRY_SECONDS: Final = 0.2
# systemctl(1) restarts several services by one call each: the sniffer may end before the daemon is asked to hand over.
_TOLERATED_SECONDS: Final = 1.0
_BATCH_SECONDS: Final = 0.05
_LASTING_SECONDS: Final = 1.0


class Haste(NamedTuple):
    """How soon the control loop must know of changes, and of new connections: `Follower.spacing` and `patience`."""

    spacing: float = 0.0
    patience: float = 0.0


def haste(snapshot: Snapshot) -> Haste:
    """How soon the control loop must know of changes, in the state of this snapshot.

    Nothing is urgent that kernel programs decide alone: they pace capped subflows, and hold them back. Limits, uplinks
    and bursts wait for the control loop.
    """
    if snapshot.problem_of(FeatureName.PACING) is not None:
        return Haste()
    is_steered = snapshot.problem_of(FeatureName.STEERING) is None
    return Haste(_BATCH_SECONDS, _LASTING_SECONDS if is_steered and snapshot.terms.has_only_caps else 0.0)


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """What is new in the sniffer's table, and the revision that it leads to; `problem` says why there is no table.

    `connections` has None for one that has ended. If this is the `whole` table, connections that it lacks have ended.
    """

    epoch: str = ""
    revision: int = 0
    connections: Mapping[Token, Connection | None] = field(default_factory=dict)
    whole: bool = True
    problem: str | None = "not connected yet"

    def then(self, later: TableUpdate) -> TableUpdate:
        """This update and a later one, merged."""
        if later.whole:
            return later
        connections = {**self.connections, **later.connections}
        if self.whole:
            connections = {token: c for token, c in connections.items() if c is not None}
        return replace(later, connections=connections, whole=self.whole)


class Source(Protocol):
    """Where the sniffer's table comes from."""

    def take(self) -> TableUpdate | None:
        """What is new since the last call; None if nothing."""


class Call(NamedTuple):
    """Call the sniffer, and send its answer."""

    method: str
    arguments: tuple[Json, ...] = ()


class Begin(NamedTuple):
    """Begin this call, whose answer a later `Call` asks for."""

    call: Call


class Wait(NamedTuple):
    """Wait for a number of seconds."""

    seconds: float


Action = Call | Begin | Wait
"""What a `Follower` asks for next."""


class Follower:
    """Decides what to ask the sniffer for, and keeps what its answers say; `arrived` is called after each update.

    It has neither thread nor socket: `actions` yields what is to be done. A `Call` is answered by `send`, or by `throw`
    if it fails.

    `parts` counts the parts of whole tables that were received: while it grows, a table is on its way. `spacing` is the
    least time in seconds between deliveries; the first two after a silence are not delayed. `patience` is the age in
    seconds at which new connections are delivered.
    """

    def __init__(self, arrived: Callable[[], None], clock: Clock) -> None:
        self._arrived = arrived
        self._clock = clock
        self._updates: queue.SimpleQueue[TableUpdate] = queue.SimpleQueue()
        self._problem: str | None = None
        self._asked_at = 0.0
        self._failing_since: float | None = -math.inf
        self.parts = 0
        self.spacing = 0.0
        self.patience = 0.0

    @property
    def empty(self) -> bool:
        """Whether there is no update to take."""
        return self._updates.empty()

    def take(self) -> TableUpdate | None:
        """All updates that have come since the last call, as one; None if there are none. For any thread."""
        update: TableUpdate | None = None
        with suppress(queue.Empty):
            while True:
                later = self._updates.get_nowait()
                update = later if update is None else update.then(later)
        return update

    def actions(self) -> Generator[Action, Json, NoReturn]:
        """Follow the table for ever."""
        while True:
            try:
                yield from self._follow()
            except Exception as error:
                self._failing_since = self._asked_at if self._failing_since is None else self._failing_since
                lasted = self._clock.monotonic() - self._failing_since
                if str(error) != self._problem and lasted >= _TOLERATED_SECONDS:
                    self._problem = str(error)
                    self._deliver(TableUpdate(problem=self._problem))
                yield Wait(_RETRY_SECONDS)

    def _deliver(self, update: TableUpdate) -> None:
        self._updates.put(update)
        self._arrived()

    def _follow(self) -> Generator[Action, Json, None]:
        update, is_behind = (yield from self._take_table()), True
        while is_behind:
            answer = yield from self._ask("changes", update.epoch, update.revision, 0.0)
            if answer.get("resync"):
                return
            update, is_behind = update.then(_decode_changes(answer)), answer["more"]
        self._problem = None
        self._deliver(update)
        next_at = -math.inf
        while True:
            answer = yield from self._ask("changes", update.epoch, update.revision, _POLL_SECONDS, self.patience)
            self._failing_since = None
            if answer.get("resync"):
                return
            if answer["changes"]:
                update = _decode_changes(answer)
                self._deliver(update)
                now = self._clock.monotonic()
                yield Wait(max(next_at - now, 0.0))
                next_at = max(next_at, now) + self.spacing

    def _take_table(self) -> Generator[Action, Json, TableUpdate]:
        """All parts of the table, at the revision of the first: later changes may be in the other parts, or may not."""
        connections: dict[Token, Connection | None] = {}
        first = data = yield from self._ask("snapshot")
        while True:
            self.parts += 1
            following: Json = data["next"]
            if following is not None:
                # The sniffer encodes the next part while we decode this one.
                yield Begin(Call("snapshot", (following,)))
            connections.update((c.token, c) for c in map(decode_connection, data["connections"]))
            if following is None:
                return TableUpdate(first["epoch"], first["revision"], connections, True, None)
            data = yield from self._ask("snapshot", following)

    def _ask(self, method: str, *arguments: Json) -> Generator[Action, Json, Json]:
        self._asked_at = self._clock.monotonic()
        return (yield Call(method, arguments))


class TableSource(threading.Thread):
    """Carries out the actions of a `follower` in this thread until `stop()`."""

    def __init__(self, sniffer_socket: Path, follower: Follower) -> None:
        super().__init__(name="table-source", daemon=True)
        self._client = RpcClient(sniffer_socket, _CALL_SECONDS, keep=True)
        self._follower = follower
        self._stopping = threading.Event()
        self._begun: tuple[Call, Future[Json]] | None = None

    def stop(self) -> None:
        """Stop, at the latest when the current call ends."""
        self._stopping.set()
        self._client.interrupt()
        self.join()
        self._client.close()

    def run(self) -> None:
        """Follow the table."""
        actions = self._follower.actions()
        action = next(actions)
        with ThreadPoolExecutor(1, "table-part") as ahead:
            while not self._stopping.is_set():
                try:
                    answer = self._carry_out(action, ahead)
                except Exception as error:
                    if self._stopping.is_set():
                        return
                    action = actions.throw(error)
                else:
                    action = actions.send(answer)

    def _carry_out(self, action: Action, ahead: ThreadPoolExecutor) -> Json:
        match action:
            case Begin(call):
                self._begun = call, ahead.submit(self._client.call, call.method, *call.arguments)
            case Wait(seconds):
                self._stopping.wait(seconds)
            case Call(method, arguments):
                begun, self._begun = self._begun, None
                if begun is not None and begun[0] == action:
                    return begun[1].result()
                if begun is not None:
                    wait([begun[1]])  # one call at a time; its answer is of a table that is not wanted any more
                return self._client.call(method, *arguments)
        return None


def _decode_changes(data: Json) -> TableUpdate:
    connections = {
        decode_token(change["token"]): None if change["connection"] is None else decode_connection(change["connection"])
        for change in data["changes"]
    }
    return TableUpdate(data["epoch"], data["revision"], connections, False, None)
