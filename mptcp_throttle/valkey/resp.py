"""The protocol of Valkey and Redis, RESP2: commands to bytes, and bytes to replies.

What a server sends is not trusted: a reply that is not what the protocol allows is refused, and nothing is stored
because of a length that a server announces. https://valkey.io/topics/protocol/
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

_MAX_DEPTH: Final = 4
_MAX_INTEGER: Final = 2**63
_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,19}")
_KINDS: Final = frozenset({b"+", b"-", b":", b"$", b"*"})
_NO_LENGTH: Final = -2
_ERROR_CHARACTERS: Final = 120
_MANY: Final = 16
_SHORT: Final = 63
_HEADERS: Final = tuple(b"$%d" % length for length in range(_SHORT + 1))


class MalformedReply(ValueError):
    """Bytes that are not RESP, after `number` complete replies."""

    def __init__(self, number: int) -> None:
        super().__init__("the server's answer is not RESP")
        self.number = number


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error that the server says, on one line."""

    text: str

    @property
    def code(self) -> str:
        """Its first word, such as `READONLY`."""
        return self.text.partition(" ")[0]


Reply = int | str | bytes | None | ErrorReply | tuple["Reply", ...]
"""An integer, a status, a value, nothing, an error, or several replies."""


class Place(NamedTuple):
    """The reply with this number, or an element of it if it is an array; both are counted from 0."""

    number: int
    element: int | None = None


def encoded(*words: bytes) -> bytes:
    """A command."""
    return b"*%d\r\n%b" % (len(words), b"".join(map(bulk, words)))


def bulk(word: bytes) -> bytes:
    """A word of a command."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def replies(data: bytes, number: int) -> list[Reply]:
    """The replies to `number` commands, which are all of `data`. Raises MalformedReply."""
    made: list[Reply] = []
    at = 0
    try:
        while len(made) < number:
            reply, at = _reply(data, at, 0)
            made.append(reply)
    except ValueError as error:
        raise MalformedReply(len(made)) from error
    if at != len(data):
        raise MalformedReply(number)
    return made


def longest_value(data: bytes) -> Place:
    """Where in an answer, of which these are the first bytes, the longest value is, or what is not RESP.

    Of a value that is not complete, the length that the server announces counts.
    """
    place, _ = max(_lengths(data), key=lambda each: each[1], default=(Place(0), 0))
    return place


def _lengths(data: bytes) -> Iterator[tuple[Place, float]]:
    """The places of values, each with its length; infinity where something is not RESP."""
    number, element, at = 0, None, 0
    # Of the reply, and of each array that is not complete, how many elements are still to come.
    left = [1]
    while at < len(data):
        left[-1] -= 1
        if len(left) == 2:
            element = 0 if element is None else element + 1
        place, end = Place(number, element), data.find(b"\r\n", at)
        if end < 0:
            yield place, len(data) - at
            return
        kind, line, at = data[at : at + 1], data[at + 1 : end], end + 2
        try:
            length = _integer(line) if kind in {b"$", b"*"} else len(line)
        except ValueError:
            length = _NO_LENGTH
        if kind not in _KINDS or length < -1 or len(left) > _MAX_DEPTH + 1:
            yield place, math.inf
            return
        if kind == b"*":
            left.append(max(length, 0))
        else:
            yield place, length
        if kind == b"$" and length >= 0:
            at += length + 2
        while left and not left[-1]:
            left.pop()
        if not left:
            number, element, left = number + 1, None, [1]


def _reply(data: bytes, at: int, depth: int) -> tuple[Reply, int]:
    """The reply that begins there, and where the next one does. Raises ValueError."""
    end = data.index(b"\r\n", at)
    kind, line, after = data[at : at + 1], data[at + 1 : end], end + 2
    match kind:
        case b"+":
            return _text(line), after
        case b"-":
            return ErrorReply(_text(line)), after
        case b":":
            return _integer(line), after
        case b"$":
            return _bulk(data, after, _integer(line))
        case b"*" if depth < _MAX_DEPTH:
            return _array(data, after, _integer(line), depth)
    raise ValueError("a reply has another type")


def _bulk(data: bytes, at: int, length: int) -> tuple[Reply, int]:
    if length == -1:
        return None, at
    end = at + length
    if length < 0 or data[end : end + 2] != b"\r\n":
        raise ValueError("a value is incomplete")
    return data[at:end], end + 2


def _array(data: bytes, at: int, length: int, depth: int) -> tuple[Reply, int]:
    if length == -1:
        return None, at
    # The shortest reply has three bytes.
    if not 0 <= length <= len(data) // 3:
        raise ValueError("an array is incomplete")
    short = _short_values(data, at, length) if length >= _MANY else None
    if short is not None:
        return short
    made: list[Reply] = []
    for _ in range(length):
        reply, at = _reply(data, at, depth + 1)
        made.append(reply)
    return tuple(made), at


def _short_values(data: bytes, at: int, number: int) -> tuple[Reply, int] | None:
    """`number` values that begin there, and where they end; None unless all are short, without an end of line.

    A proxy reads ten thousand of them in a second.
    """
    lines = data[at : at + number * (len(_HEADERS[-1]) + _SHORT + 4)].split(b"\r\n", 2 * number)
    headers, values = lines[: 2 * number : 2], lines[1 : 2 * number : 2]
    lengths = list(map(len, values))
    is_whole = len(lines) == 2 * number + 1 and max(lengths) <= _SHORT
    if not is_whole or headers != [_HEADERS[length] for length in lengths]:
        return None
    return tuple(values), at + sum(lengths) + sum(map(len, headers)) + 4 * number


def _integer(line: bytes) -> int:
    if _INTEGER.fullmatch(line) is None or not -_MAX_INTEGER <= int(line) < _MAX_INTEGER:
        raise ValueError("no integer")
    return int(line)


def _text(line: bytes) -> str:
    """For one line of a log, without what could be more than that."""
    text = line[:_ERROR_CHARACTERS].decode("ascii", "replace")
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
