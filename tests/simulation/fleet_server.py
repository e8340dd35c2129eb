"""A server of Valkey in memory, with a replica: hashes that expire, and what goes wrong with it and on the way."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from disk import Killed
from timeline import Timeline, VirtualClock

from mptcp_throttle.valkey.connection import Connection, ValkeyError
from mptcp_throttle.valkey.resp import bulk
from mptcp_throttled.fleet.members import LEASE_SECONDS
from mptcp_throttled.fleet.totals_server import ANSWER_SECONDS

if TYPE_CHECKING:
    import socket

    from mptcp_throttle.valkey.server import Server

PORTS: Final = (6379, 6380)
"""Those of the two servers of the fleet. One of them takes writes."""

REPLICATED_SECONDS: Final = 2.0
"""What was written so long before a failover is never lost by it."""

LATEST_SECONDS: Final = LEASE_SECONDS
"""What is sent arrives so late at most, or never (`fleet/members.py`)."""

_READ_SECONDS: Final = 60.0
"""By then, proxies have read again what they read at all."""

_FULL: Final = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
_READ_ONLY: Final = b"-READONLY You can't write against a read only replica.\r\n"
_WRONG_TYPE: Final = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
_WRITES: Final = frozenset({b"HSET", b"HDEL", b"EXPIRE"})


@dataclass
class Hash:
    """Its fields, and when it expires in monotonic seconds; not `is_hash`: it is of another type."""

    fields: dict[bytes, bytes] = field(default_factory=dict)
    expires: float = math.inf
    is_hash: bool = True


class Fallen(NamedTuple):
    """The value of a field was `most`, and is only `least` since and `until` these times, in monotonic seconds."""

    since: float
    most: int
    least: int
    until: float


@dataclass
class Way:
    """How a proxy reaches the server. `is_cut`: not at all; what is sent then may have arrived if `arrives`.

    One answer is lost, after the `next_answers`, and the proxy is killed at the request that `dies_after` so many; -1:
    that does not happen.
    """

    is_cut: bool = False
    arrives: bool = False
    next_answers: int = -1
    dies_after: int = -1

    @property
    def is_armed(self) -> bool:
        """Whether something will go wrong."""
        return self.next_answers >= 0 or self.dies_after >= 0


class ModelValkey:
    """Both servers: the replica has all that the other one has, but what a failover loses."""

    def __init__(self, clock: VirtualClock, timeline: Timeline, random: Random) -> None:
        self._clock, self._timeline, self._random = clock, timeline, random
        self.hashes: dict[bytes, Hash] = {}
        self.primary = 0
        self.is_down = self.is_slow = self.is_full = self.refuses_password = False
        self.happens: tuple[int, Callable[[], None]] | None = None
        """What happens after so many requests more."""
        self.damaged: set[bytes] = set()
        """The hashes that another program has replaced or deleted: who has no traffic does not write them again."""
        self._most: dict[tuple[bytes, bytes], int] = {}
        self._fallen: dict[bytes, dict[bytes, Fallen]] = {}
        self._written: deque[tuple[float, bytes, bytes, bytes | None]] = deque()
        self._connections: list[ModelConnection] = []

    # What goes wrong

    def wipe(self, *, restarts: bool) -> None:
        """It loses all, and with a restart all connections."""
        self.hashes.clear()
        self._written.clear()
        if restarts:
            self.break_connections()

    def fail_over(self, lost_seconds: float) -> None:
        """The replica goes on, without what was written in the last seconds."""
        while self._written and self._written[-1][0] > self._clock.now - lost_seconds:
            _, name, key, before = self._written.pop()
            hashed = self.hashes.get(name)
            if hashed is None or not hashed.is_hash:
                continue
            if before is None:
                hashed.fields.pop(key, None)
            else:
                self._put(name, hashed, key, before)
        for name in [name for name, hashed in self.hashes.items() if not hashed.fields and hashed.is_hash]:
            del self.hashes[name]
        self.primary = 1 - self.primary
        self.break_connections()

    def break_connections(self) -> None:
        """Those who wait learn it at once."""
        for connection in self._connections:
            connection.is_broken = True
        self._connections.clear()

    def put_type(self, name: bytes, *, is_hash: bool) -> None:
        """Another program has replaced a hash by a value of another type, or deletes that."""
        if is_hash:
            self.hashes.pop(name, None)
        else:
            self.hashes[name] = Hash(is_hash=False)
            self.damaged.add(name)

    # What proxies see

    def open(self, server: Server, way: Way) -> ModelConnection:
        """A connection to the server with this port. Raises ValkeyError."""
        self._note_request()
        if self.is_down or way.is_cut:
            raise ValkeyError(f"{server}: {'No route to host' if way.is_cut else 'Connection refused'}")
        if self.is_slow:
            raise SlowAnswer(f"{server}: does not answer")
        if self.refuses_password:
            raise ValkeyError(f"{server}: WRONGPASS invalid username-password pair or user is disabled.")
        made = ModelConnection(self, server, PORTS.index(server.port), way)
        self._connections.append(made)
        return made

    def answer(self, connection: ModelConnection, commands: bytes) -> bytes:
        """Carry out what a connection has sent. Raises ValkeyError."""
        self._note_request()
        way, place = connection.way, f"{connection.server}"
        if connection.is_broken or self.is_down:
            raise ValkeyError(f"{place}: Connection reset by peer")
        is_lost, is_deadly = way.next_answers == 0, way.dies_after == 0
        way.next_answers = max(way.next_answers - 1, -1)
        if self.is_slow or way.is_cut or is_lost:
            if is_lost or (self.is_slow and not way.is_cut) or way.arrives:
                after = 0.0 if is_lost else self._random.uniform(0.0, LATEST_SECONDS)
                self._timeline.after(after, lambda: self._carry_out_late(connection, commands))
            connection.is_broken = True
            raise SlowAnswer(f"{place}: does not answer")
        data = self._carried_out(connection.index, commands)
        way.dies_after = max(way.dies_after - 1, -1)
        if is_deadly:
            raise Killed
        return data

    def _note_request(self) -> None:
        if self.happens is not None:
            number, happen = self.happens
            self.happens = (number - 1, happen) if number else None
            if not number:
                happen()

    def _carry_out_late(self, connection: ModelConnection, commands: bytes) -> None:
        if not self.is_down:
            self._carried_out(connection.index, commands)

    def _carried_out(self, index: int, commands: bytes) -> bytes:
        return b"".join([self._reply(index, words) for words in _commands(commands)])

    def _reply(self, index: int, words: list[bytes]) -> bytes:
        verb, name = words[0], words[1]
        if index != self.primary and verb in _WRITES:
            return _READ_ONLY
        hashed = self._present(name)
        if hashed is not None and not hashed.is_hash and verb != b"EXPIRE":
            return _WRONG_TYPE
        if verb == b"HSET":
            if self.is_full:
                return _FULL
            return b":%d\r\n" % self._set(name, words[2], words[3])
        if verb == b"HSCAN":
            items = [] if hashed is None else [bulk(word) for item in hashed.fields.items() for word in item]
            return b"*2\r\n$1\r\n0\r\n*%d\r\n%b" % (len(items), b"".join(items))
        if verb == b"HMGET":
            values = [None if hashed is None else hashed.fields.get(key) for key in words[2:]]
            return b"*%d\r\n%b" % (len(values), b"".join(b"$-1\r\n" if each is None else bulk(each) for each in values))
        if verb == b"HDEL":
            return b":%d\r\n" % (hashed is not None and hashed.fields.pop(words[2], None) is not None)
        if verb == b"EXPIRE":
            if hashed is None:
                return b":0\r\n"
            hashed.expires = self._clock.now + int(words[2])
            return b":1\r\n"
        raise AssertionError(verb)

    def _present(self, name: bytes) -> Hash | None:
        hashed = self.hashes.get(name)
        if hashed is not None and hashed.expires <= self._clock.now:
            del self.hashes[name]
            return None
        return hashed

    def _set(self, name: bytes, key: bytes, value: bytes) -> bool:
        hashed = self.hashes.setdefault(name, Hash())
        before = hashed.fields.get(key)
        self._written.append((self._clock.now, name, key, before))
        while self._written[0][0] < self._clock.now - REPLICATED_SECONDS:
            self._written.popleft()
        self._put(name, hashed, key, value)
        return before is None

    def _put(self, name: bytes, hashed: Hash, key: bytes, value: bytes) -> None:
        hashed.fields[key] = value
        number = int(value) if value.isdigit() else 0
        most = self._most[name, key] = max(self._most.get((name, key), 0), number)
        of_hash = self._fallen.setdefault(name, {})
        fallen = of_hash.get(key)
        if fallen is not None and fallen.until < self._clock.now:
            fallen = None
        if number < most:
            least = number if fallen is None else min(number, fallen.least)
            since = self._clock.now if fallen is None else fallen.since
            of_hash[key] = Fallen(since, most, least, math.inf)
        elif fallen is not None:
            of_hash[key] = fallen._replace(until=min(fallen.until, self._clock.now + _READ_SECONDS))

    def fallen(self, name: bytes, but: bytes, seconds: float) -> int:
        """By how many bytes the totals in a hash, but one, have been less than they were for so long."""
        now = self._clock.now
        return sum(
            fallen.most - fallen.least
            for key, fallen in self._fallen.get(name, {}).items()
            if key != but and fallen.since <= now - seconds and fallen.until >= now
        )

    def write(self, name: bytes, key: bytes, value: bytes) -> None:
        """Who does not keep to the rules writes a value."""
        hashed = self._present(name)
        if hashed is not None and hashed.is_hash:
            self._set(name, key, value)

    def expire(self) -> None:
        """Forget what has expired."""
        for name in list(self.hashes):
            self._present(name)
        for name in [name for name in self._fallen if name not in self.hashes]:
            for key in self._fallen.pop(name):
                self._most.pop((name, key), None)


class SlowAnswer(ValkeyError):
    """There was no answer in `ANSWER_SECONDS`, for which the thread has waited."""

    seconds: Final = ANSWER_SECONDS


class ModelConnection(Connection):
    """To one of the two servers."""

    def __init__(self, valkey: ModelValkey, server: Server, index: int, way: Way) -> None:
        self.server = server
        self.way, self.index = way, index
        self.is_broken = False
        self._valkey = valkey
        self._stream: socket.socket

    def replies_to(self, commands: bytes, number: int, most_bytes: int) -> bytes:
        """As `Connection`."""
        assert number
        data = self._valkey.answer(self, commands)
        assert len(data) <= most_bytes or b"HSCAN" in commands
        return data

    def close(self) -> None:
        """As `Connection`."""
        self.is_broken = True


def _commands(data: bytes) -> Iterator[list[bytes]]:
    """The words of each command."""
    lines = data.split(b"\r\n")
    at = 0
    while lines[at]:
        number = int(lines[at][1:])
        yield lines[at + 2 : at + 1 + 2 * number : 2]
        at += 1 + 2 * number
