"""The rounds of leases with a server of Valkey or Redis: one connection is one session.

Each proxy has a hash of its own, which the server can keep all others from writing. Its fields are

* `record`, and `lost` for the parts of proxies whose records the server has lost,
* one for each rate with its statement, and `about` with a checksum of the name of each: others ask only for statements
  that are there. Of 50 proxies, most have none about a client.

Another hash has the names of all proxies as fields. No command names two hashes, but all are on one server, whose order
of commands is what the rule of leases needs.
"""

from __future__ import annotations

import dataclasses
import sys
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from hashlib import blake2b
from itertools import chain
from typing import Final, NamedTuple, Self, TypeVar
from zlib import crc32

from mptcp_throttle.config.validation import is_name
from mptcp_throttle.valkey.connection import Connection, RefusedReply, ValkeyError
from mptcp_throttle.valkey.lease_names import NAMES, RECORD, hash_of
from mptcp_throttle.valkey.resp import ErrorReply, Reply, encoded
from mptcp_throttled.fleet.lease_book import Request
from mptcp_throttled.fleet.leases import Statement
from mptcp_throttled.fleet.members import FORGET_SECONDS, HEARD_SECONDS, MOST_MEMBERS, Record, Round
from mptcp_throttled.vocabulary.fleet import RateKey

_Item = TypeVar("_Item")

LOST: Final = b"lost"
ABOUT: Final = b"about"

_KEPT_SECONDS: Final = b"%d" % FORGET_SECONDS
_DIGEST_BYTES: Final = 16
_BATCH: Final = 500
_MOST_NAMES: Final = 1024
"""Of proxies that have ever shared rates: a proxy may add its name, but remove none."""
_NAME_BYTES: Final = 32
_VALUE_BYTES: Final = 64
_LOST_BYTES: Final = MOST_MEMBERS * (_NAME_BYTES + len(" 720720 "))
_MOST_ABOUT_BYTES: Final = 4 * 2**16
_MOST_OWN_BYTES: Final = 2**24


class HashTooLong(ValkeyError):
    """The answer about the hash of `proxy` is longer than allowed. The connection is closed."""

    def __init__(self, proxy: str) -> None:
        super().__init__(f"{hash_of(proxy).decode()} is too long, or no hash")
        self.proxy = proxy


class Answer(NamedTuple):
    """Of a round: the records, what each proxy has stated about the rates, the rates of which that has `changed` since
    the round before, and what was refused, in a line each."""

    round: Round
    statements: Mapping[RateKey, Mapping[str, Statement]]
    changed: Sequence[RateKey]
    refused: Sequence[str]


def field_of_rate(key: RateKey, secret: bytes | None) -> bytes:
    """Of the statement about a rate: with a `secret`, only who has it can tell whose rate; None: it says so."""
    whose = f"{key.network}:{key.client}:{key.direction}".encode()
    return whose if secret is None else blake2b(whose, key=secret, digest_size=_DIGEST_BYTES).hexdigest().encode()


@dataclasses.dataclass(slots=True)
class _Hash:
    """What a proxy has stated: `about` which rates, as `checksums` of their fields, and what was read last, by field.

    `fields` are those that are of use here, None: not known yet; `command` reads them.
    """

    about: bytes = b""
    checksums: set[int] = dataclasses.field(default_factory=set)
    fields: Sequence[bytes] | None = None
    command: bytes = b""
    values: dict[bytes, Reply] = dataclasses.field(default_factory=dict)


class _Rate(NamedTuple):
    """A rate, and what each proxy has `stated` about it."""

    key: RateKey
    stated: dict[str, Statement]


class _Query(NamedTuple):
    """A command that reads `number` values of a proxy's hash."""

    proxy: str
    command: bytes
    number: int

    @classmethod
    def of(cls, proxy: str, *fields: bytes) -> Self:
        return cls(proxy, encoded(b"HMGET", hash_of(proxy), *fields), len(fields))


class LeaseServer:
    """The server of a connection, by which the proxy `name` exchanges records and statements.

    All methods raise ValkeyError, after which the connection is of no use. HashTooLong names a proxy that is to be left
    `unread` for a while, which then counts as silent.
    """

    def __init__(self, connection: Connection, name: str, secret: bytes | None) -> None:
        self._connection = connection
        self._name = name
        self._own = hash_of(name)
        self._secret = secret
        self._began: float | None = None
        self._earlier: set[bytes] = set()
        self._fields: dict[RateKey, bytes] = {}
        self._rates: dict[bytes, _Rate] = {}
        self._by_checksum: dict[int, list[bytes]] = {}
        self._hashes: dict[str, _Hash] = {}
        self._statements: dict[RateKey, dict[str, Statement]] = {}

    def records(self, unread: Collection[str] = ()) -> dict[str, Record]:
        """The records of all proxies, if the server takes writes."""
        earlier, _, names = self._replies_and_names([encoded(b"HKEYS", self._own)], _MOST_OWN_BYTES)
        if not isinstance(earlier, tuple):
            raise HashTooLong(self._name)
        self._earlier = {field for field in earlier if isinstance(field, bytes)} - {RECORD, LOST, ABOUT}
        records, _ = self._read_records(_names(names, []), unread, [])
        return records

    def exchange(self, request: Request, sent: float, unread: Collection[str] = ()) -> Answer:
        """Carry out a round that begins at `sent`, in monotonic seconds."""
        refused: list[str] = []
        self._began = sent if self._began is None else self._began
        stated = [(self._field(key), str(statement).encode()) for key, statement in request.writes.items()]
        deleted = [self._drop_field(key) for key in request.deletes]
        if sent - self._began >= HEARD_SECONDS:
            # What an earlier instance may have had in the kernel until now.
            deleted += self._earlier
            self._earlier.clear()
        about = array("I", chain(self._by_checksum, map(_checksum, self._earlier))).tobytes()
        about_self = ((RECORD, str(request.record).encode()), (LOST, _lost_text(request.lost)), (ABOUT, about))
        commands = [
            *(encoded(b"HSET", self._own, *chain.from_iterable(batch)) for batch in _batches(stated)),
            encoded(b"HGET", self._own, RECORD),
            encoded(b"HSET", self._own, *chain.from_iterable(about_self)),
            encoded(b"EXPIRE", self._own, _KEPT_SECONDS),
            *(encoded(b"HDEL", self._own, *batch) for batch in _batches(deleted)),
        ]
        replies = self._replies_and_names(commands, 0)
        first = replies[-(-len(stated) // _BATCH)]
        records, listed = self._read_records(_names(replies[-1], refused), unread, refused)
        last, changed = self._read(listed, refused)
        return Answer(Round(sent, _record(first), records, last), self._statements, changed, refused)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _field(self, key: RateKey) -> bytes:
        """The field of the statement about a rate, which is read from now on."""
        field = self._fields.get(key)
        if field is None:
            field = self._fields[key] = field_of_rate(key, self._secret)
            stated = self._statements[key] = {}
            self._rates[field] = _Rate(key, stated)
            self._by_checksum.setdefault(_checksum(field), []).append(field)
            self._earlier.discard(field)
            self._forget_fields()
        return field

    def _drop_field(self, key: RateKey) -> bytes:
        """The field of the statement about a rate, which is read no more."""
        field = self._fields.pop(key)
        del self._rates[field], self._statements[key]
        of_checksum = self._by_checksum[_checksum(field)]
        of_checksum.remove(field)
        if not of_checksum:
            del self._by_checksum[_checksum(field)]
        self._forget_fields()
        return field

    def _forget_fields(self) -> None:
        for hashed in self._hashes.values():
            hashed.fields = None

    def _replies_and_names(self, commands: Sequence[bytes], most_bytes: int) -> list[Reply]:
        """The replies to commands, and to two more: add the own name, and read all names."""
        join = encoded(b"HSET", NAMES, self._name.encode(), b""), encoded(b"HKEYS", NAMES)
        try:
            return self._replies_to([*commands, *join], most_bytes + _MOST_NAMES * (_NAME_BYTES + 16))
        except RefusedReply as error:
            raise ValkeyError(f"{NAMES.decode()} is too long, or no hash") from error

    def _read_records(
        self, names: Sequence[str], unread: Collection[str], refused: list[str]
    ) -> tuple[dict[str, Record], list[str]]:
        """The records of all proxies, and which proxies have a list of the rates about which they state anything."""
        queries = [_Query.of(name, RECORD, LOST, ABOUT) for name in names if name not in unread]
        records: dict[str, Record] = {}
        told: dict[str, Record] = {}
        listed = []
        for (name, _, _), reply in zip(queries, self._values(queries, _LOST_BYTES + _MOST_ABOUT_BYTES), strict=True):
            match reply:
                case (None, _, _):
                    pass
                case (record, lost, about):
                    try:
                        self._note_about(name, about)
                        listed.append(name)
                        told |= _parsed_lost(lost)
                    except ValueError as error:
                        refused.append(f"{hash_of(name).decode()} has {error}")
                        continue
                    try:
                        records[name] = Record.parse(_text(record))
                    except ValueError as error:
                        refused.append(_problem(name, record, error))
                case _:
                    refused.append(f"{hash_of(name).decode()} is no hash")
        if len(records) > MOST_MEMBERS:
            raise ValkeyError(f"{len(records)} proxies share rates; allowed: up to {MOST_MEMBERS}")
        return told | records, listed

    def _note_about(self, name: str, reply: Reply) -> None:
        """Raises ValueError."""
        about, hashed = reply if isinstance(reply, bytes) else b"", self._hashes.setdefault(name, _Hash())
        if about != hashed.about:
            hashed.checksums = _checksums(about)
            hashed.about, hashed.fields = about, None

    def _read(self, listed: Sequence[str], refused: list[str]) -> tuple[Record | None, list[RateKey]]:
        """Read what all proxies state, and the record of this one last. The rates of which anything has changed."""
        changed: set[bytes] = set()
        queries: list[_Query] = []
        for name in (*(name for name in listed if name != self._name), self._name):
            hashed = self._hashes.setdefault(name, _Hash())
            if hashed.fields is None:
                hashed.fields = self._fields_of(name, hashed.checksums)
                hashed.command = encoded(b"HMGET", hash_of(name), *hashed.fields)
            if hashed.fields:
                queries.append(_Query(name, hashed.command, len(hashed.fields)))
        for name in self._hashes.keys() - {each.proxy for each in queries}:
            changed |= self._note_values(name, {}, refused)
        reply: Reply = None
        for (name, _, _), reply in zip(queries, self._values(queries, 0), strict=True):
            fields = self._hashes[name].fields or ()
            values = dict(zip(fields, reply if isinstance(reply, tuple) else (), strict=False))
            values.pop(RECORD, None)
            changed |= self._note_values(name, values, refused)
        return _record(reply[0] if isinstance(reply, tuple) else None), [self._rates[field].key for field in changed]

    def _fields_of(self, name: str, checksums: Set[int]) -> Sequence[bytes]:
        """Those of which a proxy may have a value that is of use here."""
        if name == self._name:
            return RECORD, *self._rates
        return [field for checksum in self._by_checksum.keys() & checksums for field in self._by_checksum[checksum]]

    def _note_values(self, name: str, values: dict[bytes, Reply], refused: list[str]) -> set[bytes]:
        """The fields of which a proxy states something else than before."""
        before, self._hashes[name].values = self._hashes[name].values, values
        news = {field: value for field, value in values.items() if before.get(field) != value}
        news.update(dict.fromkeys(before.keys() - values.keys()))
        changed = news.keys() & self._rates.keys()
        for field in changed:
            value, stated = news[field], self._rates[field].stated
            stated.pop(name, None)
            if value is not None:
                try:
                    stated[name] = Statement.parse(_text(value))
                except ValueError as error:
                    refused.append(_problem(name, value, error))
        return changed

    def _values(self, queries: Sequence[_Query], most: int) -> Iterator[Reply]:
        """The values of fields in the hashes of proxies, which have up to `most` bytes beside statements."""
        for batch in _batches(queries, MOST_MEMBERS):
            bounds = (most + each.number * (_VALUE_BYTES + 16) for each in batch)
            try:
                yield from self._replies_to([each.command for each in batch], sum(bounds))
            except RefusedReply as error:
                raise HashTooLong(batch[error.place.number].proxy) from error

    def _replies_to(self, commands: Sequence[bytes], most_bytes: int) -> list[Reply]:
        replies = self._connection.ask(commands, most_bytes + len(commands) * (_VALUE_BYTES + 256))
        for reply in replies:
            if isinstance(reply, ErrorReply) and reply.code != "WRONGTYPE":
                raise ValkeyError(f"{self._connection.server}: {reply.text}")
        return replies


def _batches(items: Sequence[_Item], size: int = _BATCH) -> Iterator[Sequence[_Item]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


def _names(reply: Reply, refused: list[str]) -> list[str]:
    """The names of proxies. Raises ValkeyError."""
    if not isinstance(reply, tuple):
        raise ValkeyError(f"{NAMES.decode()} is no hash")
    texts = [_text(each) for each in reply]
    refused += [f"{NAMES.decode()}: {text[:_NAME_BYTES]!r} is not of a proxy" for text in texts if not is_name(text)]
    return [text for text in texts if is_name(text)]


def _checksum(field: bytes) -> int:
    """What stands for it in an array of this host, whose bytes are those of the checksum in network order."""
    return int.from_bytes(crc32(field).to_bytes(4, "big"), sys.byteorder)


def _bounded(reply: Reply, most: int) -> bytes:
    """A value. Raises ValueError: the bound of an answer is for many proxies together, of which one could take all."""
    value = reply if isinstance(reply, bytes) else b""
    if len(value) > most:
        raise ValueError(f"a value of {len(value)} bytes; allowed: up to {most}")
    return value


def _checksums(reply: Reply) -> set[int]:
    """Raises ValueError."""
    text = _bounded(reply, _MOST_ABOUT_BYTES)
    if len(text) % 4:
        raise ValueError("no list of rates; allowed: four bytes each")
    return set(array("I", text))


def _lost_text(lost: Mapping[str, Record]) -> bytes:
    return " ".join(f"{name} {record.part}" for name, record in lost.items()).encode()


def _parsed_lost(reply: Reply) -> dict[str, Record]:
    """Raises ValueError."""
    words = _text(_bounded(reply, _LOST_BYTES)).split()
    names = words[::2]
    if len(words) % 2 or len(names) > MOST_MEMBERS or not all(map(is_name, names)):
        raise ValueError("no list of proxies; allowed: names, each with a part")
    return {name: Record.told(part) for name, part in zip(names, words[1::2], strict=True)}


def _record(reply: Reply) -> Record | None:
    try:
        return Record.parse(_text(reply))
    except ValueError:
        return None


def _problem(proxy: str, value: Reply, error: ValueError) -> str:
    return f"{_text(value)[:40]!r} of {proxy!r} {error}"


def _text(reply: Reply) -> str:
    return reply.decode("ascii", "replace") if isinstance(reply, bytes) else ""
