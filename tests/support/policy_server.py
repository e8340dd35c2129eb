"""A model of the fleet's server: the hashes that policies need, and false answers that a test chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mptcp_throttle.valkey.connection import RefusedReply, ValkeyError
from mptcp_throttle.valkey.resp import ErrorReply, Place, Reply, replies


@dataclass
class PolicyServer:
    """`hashes` by their keys; a hash that is a text is the error that the server answers. `asked` are the commands."""

    hashes: dict[bytes, dict[bytes, bytes] | str] = field(default_factory=dict)
    is_away: bool = False
    asked: list[tuple[bytes, ...]] = field(default_factory=list)

    def ask(self, commands: Sequence[bytes], most_bytes: int) -> list[Reply]:
        """As `Connection.ask`."""
        if self.is_away:
            raise ValkeyError("10.0.0.1:6379: does not answer")
        return [self._reply(command, most_bytes) for command in commands]

    def _reply(self, command: bytes, most_bytes: int) -> Reply:
        (parsed,) = replies(command, 1)
        assert isinstance(parsed, tuple)
        words = tuple(word for word in parsed if isinstance(word, bytes))
        self.asked.append(words)
        name, key, *arguments = words
        fields = self.hashes.setdefault(key, {})
        if isinstance(fields, str):
            return ErrorReply(fields)
        reply: Reply = None
        match name:
            case b"HKEYS":
                reply = (*fields,)
            case b"HGETALL":
                reply = tuple(word for pair in fields.items() for word in pair)
            case b"HGET":
                reply = fields.get(arguments[0])
            case b"HSET":
                fields[arguments[0]] = arguments[1]
                reply = 1
            case b"HSETNX":
                reply = int(arguments[0] not in fields)
                fields.setdefault(arguments[0], arguments[1])
            case b"HDEL":
                reply = sum(fields.pop(each, None) is not None for each in arguments)
            case _:
                raise AssertionError(name)
        if _length(reply) > most_bytes:
            raise RefusedReply(Place(0))
        return reply


def _length(reply: Reply) -> int:
    if isinstance(reply, tuple):
        return sum(_length(each) + 10 for each in reply)
    return len(reply) if isinstance(reply, bytes) else 10
