"""A server of hashes in memory, in place of a connection to a real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mptcp_throttle.valkey.connection import RefusedReply, ValkeyError
from mptcp_throttle.valkey.resp import ErrorReply, Place, Reply, bulk, longest_value, replies
from mptcp_throttle.valkey.server import Server

Hashes = dict[bytes, dict[bytes, bytes]]


@dataclass
class ModelConnection:
    """It carries out commands on `hashes`; `before` is called before each. While it is `full`, it takes no writes.

    `is_lost`: it is away. Only `writable` hashes may be written, unless None. The hash `too_long` has more than may
    be read.
    """

    hashes: Hashes = field(default_factory=dict)
    full: bool = False
    is_lost: bool = False
    too_long: bytes | None = None
    server: Server = Server("192.0.2.1", 6379)  # noqa: RUF009
    commands: list[bytes] = field(default_factory=list)
    asked: list[tuple[Reply, ...]] = field(default_factory=list)
    received: int = 0
    writable: set[bytes] | None = None
    before: Callable[[bytes], None] = lambda _: None

    def ask(self, commands: Sequence[bytes], most_bytes: int) -> list[Reply]:
        """As `Connection`."""
        if self.is_lost:
            raise ValkeyError(f"{self.server}: does not answer")
        made = []
        for number, command in enumerate(commands):
            (words,) = replies(command, 1)
            assert isinstance(words, tuple)
            if words[0] == b"HMGET":
                self.asked.append(words)
            if words[0] in {b"HSCAN", b"HMGET", b"HKEYS"} and words[1] == self.too_long:
                raise RefusedReply(Place(number))
            made.append(self._reply(*[word for word in words if isinstance(word, bytes)]))
        assert len(str(made)) < 10 * most_bytes
        return made

    def replies_to(self, commands: bytes, number: int, most_bytes: int) -> bytes:
        """As `Connection`."""
        self.received += len(commands)
        made: list[bytes] = []
        for command in replies(commands, number):
            (reply,) = self.ask([_command(command)], 2**30)
            made.append(_encoded(reply))
            if len(made[-1]) > most_bytes:
                raise RefusedReply(longest_value(b"".join(made)))
        return b"".join(made)

    def parsed(self, data: bytes, number: int) -> list[Reply]:
        """As `Connection`."""
        return replies(data, number)

    def close(self) -> None:
        """As `Connection`."""

    def _reply(self, verb: bytes, name: bytes, *words: bytes) -> Reply:
        self.before(verb)
        self.commands.append(verb)
        hashed = self.hashes.setdefault(name, {})
        if verb == b"HSET" and self.full:
            return ErrorReply("OOM command not allowed when used memory > 'maxmemory'.")
        if verb in {b"HSET", b"HDEL", b"EXPIRE"} and not (self.writable is None or name in self.writable):
            return ErrorReply("NOPERM No permissions to access a key")
        match verb, words:
            case b"HSET", _:
                pairs = dict(zip(words[::2], words[1::2], strict=True))
                added = len(pairs.keys() - hashed.keys())
                hashed.update(pairs)
                return added
            case b"HGET", (key,):
                return hashed.get(key)
            case b"HMGET", _:
                return tuple(hashed.get(key) for key in words)
            case b"HKEYS", ():
                return tuple(hashed)
            case b"HDEL", _:
                return sum(hashed.pop(key, None) is not None for key in words)
            case b"HSCAN", _:
                return b"0", tuple(word for item in hashed.items() for word in item)
            case b"EXPIRE", _:
                return 1
        raise AssertionError(verb)


def _command(words: Reply) -> bytes:
    assert isinstance(words, tuple)
    return b"*%d\r\n%b" % (len(words), b"".join(bulk(word) for word in words if isinstance(word, bytes)))


def _encoded(reply: Reply) -> bytes:
    match reply:
        case ErrorReply():
            return b"-%b\r\n" % reply.text.encode()
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return bulk(reply)
        case tuple():
            return b"*%d\r\n%b" % (len(reply), b"".join(map(_encoded, reply)))
    raise AssertionError(reply)
