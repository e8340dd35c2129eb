"""The exchange of totals with a server of Valkey or Redis: HSET, EXPIRE, HSCAN, HMGET and HDEL, many in one write.

HSCAN gives a small hash as a whole, and of a huge one only a part, which is refused: HGETALL would give all of it.
HMGET gives what known proxies have written there, whatever else is in it. Its command names all of them: for a fleet of
50, that is ten times as many bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Final, TypeVar

from mptcp_throttle.valkey.connect import connect as open_connection
from mptcp_throttle.valkey.connection import Connection, RefusedReply, ValkeyError
from mptcp_throttle.valkey.resp import ErrorReply, MalformedReply, Reply, bulk, encoded, replies
from mptcp_throttle.valkey.server import Credentials, Server, ServerUrl
from mptcp_throttled.fleet.exchange import ExchangeError, ReadRefused, ReadReports, Totals, WriteRefused
from mptcp_throttled.fleet.keys import MAX_FIELDS, PROXIES
from mptcp_throttled.fleet.reports import MOST_CHARACTERS, Report
from mptcp_throttled.vocabulary.fleet import FIELD_PATTERN, proxy_of

_Value = TypeVar("_Value")

ANSWER_SECONDS: Final = 3.0
"""A server that takes longer is away."""

_BATCH: Final = 500
_END: Final = b"\r\n"
_SET: Final = b"*4\r\n$4\r\nHSET\r\n"
_SCAN: Final = b"*5\r\n$5\r\nHSCAN\r\n"
_ALL: Final = b"$1\r\n0\r\n$5\r\nCOUNT\r\n" + bulk(b"%d" % MAX_FIELDS)
_MOST_BYTES: Final = MAX_FIELDS * len("$41\r\n\r\n$18\r\n\r\n") + MAX_FIELDS * (41 + 18)
_FEWEST_BYTES: Final = MAX_FIELDS * len("$10\r\np.00000000\r\n$1\r\n1\r\n")
"""Of `MAX_FIELDS`."""
_MOST_BYTES_OF_REPORTS: Final = _MOST_BYTES + MAX_FIELDS * MOST_CHARACTERS
_LEAST_BOUND: Final = 2**17
"""What may be read at any rate: many short fields do not end the connection."""
_MOST_BYTES_OF_STATUS: Final = 200
_MOST_TOTAL: Final = 10**18
_MOST_DIGITS: Final = len(str(_MOST_TOTAL))
_MOST_OWN_DIGITS: Final = 99
_BYTES_OF_HEADER: Final = len("$128\r\n\r\n")
_NO_HASH: Final = b"is no hash"
_TOO_MANY_FIELDS: Final = b"has too many fields"
_EMPTY: Final = b"*0\r\n"
_ONE_FIELD: Final = b"*2\r\n"
_SCANNED: Final = b"*2\r\n$1\r\n0\r\n"
_NUMBER: Final = re.compile(rb"\*(\d{1,4})\r\n")
_FIELD_AND_TOTAL: Final = rb"\$\d\d\r\n%b\r\n\$\d\d?\r\n\d{1,18}\r\n" % FIELD_PATTERN.encode()
_HASH: Final = re.compile(rb"\*\d{1,3}\r\n(?:%b)*" % _FIELD_AND_TOTAL)
# The server is a replica, or takes no writes for another reason that another server may not have.
_ELSEWHERE: Final = frozenset({"READONLY", "MASTERDOWN", "LOADING", "NOREPLICAS"})


def connect(url: ServerUrl, credentials: Credentials, field: str, attempt: int) -> ValkeyExchange:
    """The exchange with the first of the servers that can be reached. Raises ExchangeError.

    `attempt` numbers the attempts: each begins with the next of several servers. `field` is that of this proxy.
    """
    try:
        return ValkeyExchange(open_connection(url, credentials, ANSWER_SECONDS, attempt), field)
    except ValkeyError as error:
        raise ExchangeError(str(error)) from error


class ValkeyExchange:
    """Hashes at the server of a connection; `field` is that of this proxy."""

    def __init__(self, connection: Connection, field: str) -> None:
        self._connection = connection
        self._field = field.encode()
        # By the number of digits, what is before a total of this proxy, and before one in a hash without other fields.
        self._before = tuple(bulk(self._field) + b"$%d\r\n" % digits for digits in range(_MOST_OWN_DIGITS + 1))
        self._before_only = tuple(_ONE_FIELD + before for before in self._before)

    @property
    def server(self) -> str:
        """Its host and port."""
        return str(self._server)

    @property
    def _server(self) -> Server:
        return self._connection.server

    def publish(self, totals: Sequence[tuple[bytes, int]], keep: Mapping[bytes, int]) -> set[bytes]:
        """As `Exchange`."""
        added: set[bytes] = set()
        for begin in range(0, len(totals), _BATCH):
            added.update(self._set_totals(totals[begin : begin + _BATCH]))
        kept = [*keep.items()]
        for begin in range(0, len(kept), _BATCH):
            commands = [encoded(b"EXPIRE", name, b"%d" % seconds) for name, seconds in kept[begin : begin + _BATCH]]
            self._checked(b"".join(commands), len(commands))
        return added

    def _set_totals(self, totals: Sequence[tuple[bytes, int]]) -> list[bytes]:
        names = [name for name, _ in totals]
        digits = _digits([total for _, total in totals])
        before = map(self._before.__getitem__, map(len, digits))
        made = self._checked(_commands(_SET, names, before, digits, repeat(_END)), len(names))
        return [name for name, reply in zip(names, made, strict=True) if reply == 1] if made else []

    def _checked(self, commands: bytes, number: int) -> list[Reply]:
        """The replies, none if all are 0. Raises ExchangeError for an error but that of a hash with another type."""
        try:
            data = self._connection.replies_to(commands, number, number * _MOST_BYTES_OF_STATUS)
            if data == b":0\r\n" * number:
                return []
            made = self._connection.parsed(data, number)
        except ValkeyError as error:
            raise ExchangeError(str(error)) from error
        for reply in made:
            if isinstance(reply, ErrorReply) and reply.code != "WRONGTYPE":
                kind = ExchangeError if reply.code in _ELSEWHERE else WriteRefused
                raise kind(f"{self._server}: {reply.text}")
        return made

    def read(self, names: Sequence[bytes]) -> Sequence[bytes]:
        """As `Exchange`."""
        contents: list[bytes] = []
        for begin in range(0, len(names), _BATCH):
            contents += self._read(names[begin : begin + _BATCH], _MOST_BYTES)
        return contents

    def _read(self, names: Sequence[bytes], most_bytes: int) -> Sequence[bytes]:
        """What is in these hashes, of each of which up to `most_bytes` are read."""
        bound = max(len(names) * most_bytes, _LEAST_BOUND)
        try:
            data = self._connection.replies_to(_commands(_SCAN, names, repeat(_ALL)), len(names), bound)
            first, *contents = data.split(_SCANNED)
            if len(contents) == len(names) and not first:
                return contents
            made = self._connection.parsed(data, len(names))
        except RefusedReply as error:
            raise ExchangeError(f"{self._server}: {error}", names[error.place.number]) from error
        except ValkeyError as error:
            raise ExchangeError(str(error)) from error
        return [self._content(reply) for reply in made]

    def _content(self, reply: Reply) -> bytes:
        """What `read` gives of a reply; of one that is no hash, an error."""
        match reply:
            case ErrorReply():
                return self._no_content(reply)
            case (b"0", (*words,)):
                return _encoded_hash([_bytes(word) for word in words])
        return _TOO_MANY_FIELDS

    def _no_content(self, reply: ErrorReply) -> bytes:
        if reply.code != "WRONGTYPE":
            kind = ExchangeError if reply.code in _ELSEWHERE else ReadRefused
            raise kind(f"{self._server}: {reply.text}")
        return _NO_HASH

    @staticmethod
    def oversized(names: Sequence[bytes], contents: Sequence[bytes]) -> Sequence[bytes]:
        """As `Exchange`."""
        if max(map(len, contents), default=0) <= _FEWEST_BYTES and _TOO_MANY_FIELDS not in contents:
            return []
        return [name for name, content in zip(names, contents, strict=True) if _is_oversized(content, _MOST_BYTES)]

    def read_fields(self, asked: Sequence[tuple[bytes, tuple[str, ...]]]) -> Sequence[bytes]:
        """As `Exchange`."""
        contents: list[bytes] = []
        for begin in range(0, len(asked), _BATCH):
            contents += self._read_fields(asked[begin : begin + _BATCH], _MOST_DIGITS)
        return contents

    def _read_fields(self, asked: Sequence[tuple[bytes, tuple[str, ...]]], most: int) -> Sequence[bytes]:
        """These fields of these hashes. Of a value with more than `most` bytes, one more is kept: it is refused."""
        words = {fields: b"".join([bulk(field.encode()) for field in fields]) for fields in {each for _, each in asked}}
        commands = [
            b"*%d\r\n$5\r\nHMGET\r\n%b%b" % (2 + len(fields), bulk(name), words[fields]) for name, fields in asked
        ]
        bound = sum(len(fields) for _, fields in asked) * (most + _BYTES_OF_HEADER) + len(asked) * _BYTES_OF_HEADER
        try:
            data = self._connection.replies_to(b"".join(commands), len(asked), max(bound, _LEAST_BOUND))
            made = self._connection.parsed(data, len(asked))
        except RefusedReply as error:
            number, element = error.place
            name, fields = asked[number]
            field = None if element is None else next(iter(fields[element:]), None)
            raise ExchangeError(f"{self._server}: {error}", name, field) from error
        except ValkeyError as error:
            raise ExchangeError(str(error)) from error
        return [self._values(fields, reply, most) for (_, fields), reply in zip(asked, made, strict=True)]

    def _values(self, fields: Sequence[str], reply: Reply, most: int) -> bytes:
        """What `read_fields` gives of a reply."""
        if isinstance(reply, ErrorReply):
            return self._no_content(reply)
        if not isinstance(reply, tuple) or len(reply) != len(fields):
            return _NO_HASH
        present = [(field, value) for field, value in zip(fields, reply, strict=True) if isinstance(value, bytes)]
        return _encoded_hash([word for field, value in present for word in (field.encode(), value[: most + 1])])

    def without_own_totals(self, contents: Sequence[bytes], published: Sequence[int]) -> Sequence[bytes | None]:
        """As `Exchange`."""
        before, only = self._before, self._before_only
        return [
            _EMPTY
            if content == only[len(digits)] + digits + _END
            else _without_own_total(content, before[len(digits)] + digits + _END)
            for content, digits in zip(contents, _digits(published), strict=True)
        ]

    @staticmethod
    def totals(content: bytes) -> Totals:
        """As `Exchange`."""
        if content == _NO_HASH:
            return Totals({}, [content.decode()])
        if _HASH.fullmatch(content) is not None:
            number, *lines = content.split(b"\r\n")
            fields = lines[1::4]
            if 2 * len(fields) == int(number[1:]):
                return Totals(dict(zip(map(bytes.decode, fields), map(int, lines[3::4]), strict=True)))
        by_field, refused, _ = _checked(content, _total, "total")
        return Totals(by_field, refused)

    def report(self, report: Report, keep: int) -> bool:
        """As `Exchange`."""
        write = encoded(b"HSET", PROXIES, self._field, str(report).encode())
        return self._checked(write + encoded(b"EXPIRE", PROXIES, b"%d" % keep), 2)[:1] == [1]

    def reports(self) -> ReadReports:
        """As `Exchange`."""
        try:
            (content,) = self._read([PROXIES], _MOST_BYTES_OF_REPORTS)
        except ReadRefused as error:
            return _refused_list(error)
        if _is_oversized(content, _MOST_BYTES_OF_REPORTS):
            too_many = content.decode() if content == _TOO_MANY_FIELDS else "has too many fields, or too long ones"
            return ReadReports({}, problem=too_many)
        return _reports(content)

    def reports_of(self, fields: tuple[str, ...]) -> ReadReports:
        """As `Exchange`."""
        try:
            (content,) = self._read_fields([(PROXIES, fields)], MOST_CHARACTERS)
        except ReadRefused as error:
            return _refused_list(error)
        return _reports(content)

    def forget(self, fields: Sequence[str]) -> None:
        """As `Exchange`."""
        commands = [encoded(b"HDEL", PROXIES, field.encode()) for field in fields]
        self._checked(b"".join(commands), len(commands))

    def close(self) -> None:
        """As `Exchange`."""
        self._connection.close()


def _digits(totals: Sequence[int]) -> list[bytes]:
    return [*map(b"%d".__mod__, totals)]


def _commands(command: bytes, names: Sequence[bytes], *rest: Iterable[bytes]) -> bytes:
    """The `command` for each of these names, with the `rest` of its words; all but the name are encoded.

    A proxy sends thousands in a second: without a step in Python for each, that takes a third of the time.
    """
    heads = {length: b"%b$%d\r\n" % (command, length) for length in {*map(len, names)}}
    words = zip(map(heads.__getitem__, map(len, names)), names, repeat(_END), *rest, strict=False)
    return b"".join(chain.from_iterable(words))


def _without_own_total(content: bytes, own: bytes) -> bytes | None:
    """What is in a hash without `own`, the field and the total of this proxy; None if that is not in it."""
    number = _NUMBER.match(content)
    if number is None:
        return None
    words = content[number.end() :]
    left = words.replace(own, b"", 1)
    return None if len(left) == len(words) else b"*%d\r\n%b" % (int(number[1]) - 2, left)


def _is_oversized(content: bytes, most: int) -> bool:
    """Whether HSCAN gave more than proxies write, or something else than a hash: a part of a value, for instance."""
    if content == _TOO_MANY_FIELDS or len(content) > most:
        return True
    if len(content) <= _FEWEST_BYTES:
        return False
    number = _NUMBER.match(content)
    return number is None or int(number[1]) > 2 * MAX_FIELDS


def _encoded_hash(words: Sequence[bytes]) -> bytes:
    """Fields and values, as the server encodes them."""
    return b"*%d\r\n%b" % (len(words), b"".join(map(bulk, words)))


def _bytes(word: Reply) -> bytes:
    return word if isinstance(word, bytes) else b""


def _refused_list(error: ReadRefused) -> ReadReports:
    return ReadReports({}, problem=f"cannot be read: {error}")


def _reports(content: bytes) -> ReadReports:
    """What is in the list of proxies."""
    if content == _NO_HASH:
        return ReadReports({}, problem=content.decode())
    return ReadReports(*_checked(content, lambda text: Report.parse(text.decode("ascii")), "report"))


def _checked(
    content: bytes, parse: Callable[[bytes], _Value], what: str
) -> tuple[dict[str, _Value], list[str], set[str]]:
    """The values of a hash of which some may be none, what is wrong with these, and which fields have them."""
    try:
        (words,) = replies(content, 1)
    except MalformedReply:
        return {}, ["is no hash"], set()
    if not isinstance(words, tuple) or len(words) % 2:
        return {}, ["is no hash"], set()
    by_field: dict[str, _Value] = {}
    refused, unreadable = [], set()
    for field, value in zip(words[::2], words[1::2], strict=True):
        try:
            name = _bytes(field).decode()
            proxy_of(name)
        except ValueError:
            refused.append(f"has the field {_shown(field)}, which no proxy has")
            continue
        try:
            by_field[name] = parse(_bytes(value))
        except ValueError:
            refused.append(f"has {_shown(value)} as the {what} of {name}")
            unreadable.add(name)
    return by_field, refused, unreadable


def _total(text: bytes) -> int:
    if not text.isdigit() or len(text) > _MOST_DIGITS or int(text) >= _MOST_TOTAL:
        raise ValueError("no number of bytes")
    return int(text)


def _shown(word: Reply) -> str:
    return repr(_bytes(word)[:40])[1:]
