"""The policies of a fleet on its server, and what each proxy says of its own.

A hash has the policies by their numbers: each is written once, and none takes the place of another. A second hash has
what proxies say. Of what the server answers, nothing is believed but signatures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Final, Self

from mptcp_throttle.config.validation import is_name
from mptcp_throttle.policy_bundle.bundle import MAX_TIME, MAX_VERSION, Bundle
from mptcp_throttle.policy_bundle.signature import MAX_SIGNED, PublicKey, checked
from mptcp_throttle.valkey.connection import RefusedReply, ValkeyError
from mptcp_throttle.valkey.lease_names import NAMES, RECORD, hash_of
from mptcp_throttle.valkey.resp import ErrorReply, Reply, encoded

KEPT: Final = 10
"""How many policies a publisher leaves there, so that there is something to return to."""

_MOST_POLICIES: Final = 16
_MOST_PROXIES: Final = 1000
_MOST_BYTES_OF_NUMBERS: Final = _MOST_POLICIES * 20
_PROBLEM_CHARACTERS: Final = 200
_MOST_BYTES_OF_PROXY: Final = 4 * _PROBLEM_CHARACTERS + 400

_MOST_BYTES_OF_RECORD: Final = 1000

Ask = Callable[[Sequence[bytes], int], Sequence[Reply]]
"""Sends encoded commands, and returns the replies, up to a number of bytes. Raises ValkeyError."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a proxy says of itself: the number and digest of its policy and since when it has that, None without one.

    `problem` is why it has adopted no later one, if so. Times are in seconds since the epoch, by the proxy's clock.
    """

    number: int | None
    digest: str | None
    since: float | None
    problem: str | None
    said_at: float

    def encode(self) -> bytes:
        """What `decode` reads."""
        problem = None if self.problem is None else _line(self.problem)
        return json.dumps({**asdict(self), "problem": problem}, ensure_ascii=False).encode()

    @classmethod
    def decode(cls, content: object) -> Self:
        """From what the server has. Raises ValueError."""
        if not isinstance(content, bytes) or len(content) > _MOST_BYTES_OF_PROXY:
            raise ValueError("is too long")
        document = json.loads(content)
        if not isinstance(document, dict):
            raise ValueError("is no mapping")
        number, digest, since, problem, said_at = (document.get(field.name) for field in fields(cls))
        if number is not None and (type(number) is not int or not 0 < number <= MAX_VERSION):
            raise ValueError("its number is not one of a policy")
        if not all(text is None or (isinstance(text, str) and text.isprintable()) for text in (digest, problem)):
            raise ValueError("its texts are not on one line")
        if (number is None) != (digest is None):
            raise ValueError("has a number without a digest, or a digest without a number")
        return cls(number, digest, None if since is None else _time(since), problem, _time(said_at))


def _line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:_PROBLEM_CHARACTERS])


def _time(value: object) -> float:
    # Written so that it refuses NaN, too; a bool is an int to Python.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_TIME:
        raise ValueError("a time of it is not valid")
    return float(value)


class PublishedPolicies:
    """Those of one fleet. All methods raise ValkeyError if the server does not answer, or not what it should."""

    def __init__(self, ask: Ask, fleet: str) -> None:
        self._ask = ask
        self._fleet = fleet
        self._policies = f"mptcp-throttle:policy:{fleet}".encode()
        self._proxies = f"mptcp-throttle:policy:{fleet}:proxies".encode()

    def numbers(self) -> list[int]:
        """The numbers of the policies that the server says it has, the highest first."""
        try:
            reply = self._reply_to(encoded(b"HKEYS", self._policies), _MOST_BYTES_OF_NUMBERS)
        except RefusedReply as error:
            raise ValkeyError(f"the server has more than {_MOST_POLICIES} policies, or none of ours") from error
        fields = reply if isinstance(reply, tuple) else ()
        numbers = [int(field) for field in fields if isinstance(field, bytes) and field.isdigit()]
        return sorted((number for number in {*numbers} if 0 < number <= MAX_VERSION), reverse=True)

    def read(self, number: int, keys: Sequence[PublicKey]) -> Bundle:
        """The policy of this number. Raises ValueError if it is not there, or not signed with one of these keys."""
        try:
            reply = self._reply_to(encoded(b"HGET", self._policies, b"%d" % number), MAX_SIGNED + 100)
        except RefusedReply as error:
            raise ValueError(f"is too long; allowed: up to {MAX_SIGNED} bytes") from error
        if not isinstance(reply, bytes):
            raise ValueError("is not on the server")
        bundle = checked(reply, keys, self._fleet)
        if bundle.version != number:
            raise ValueError(f"is in truth policy {bundle.version}")
        return bundle

    def add(self, number: int, signed: bytes) -> bool:
        """Add a policy; whether there was none of this number."""
        reply = self._reply_to(encoded(b"HSETNX", self._policies, b"%d" % number, signed), 100)
        if reply not in (0, 1):
            raise ValkeyError("the server's answer is no number")
        return reply == 1

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove policies."""
        fields = [b"%d" % number for number in numbers]
        if fields:
            self._reply_to(encoded(b"HDEL", self._policies, *fields), 100)

    def require_writes(self) -> None:
        """Raise ValkeyError if the server takes no writes, as a replica."""
        self.forget("")

    def announce(self, proxy: str, announcement: Announcement) -> None:
        """Say what a proxy has."""
        self._reply_to(encoded(b"HSET", self._proxies, proxy.encode(), announcement.encode()), 100)

    def announcements(self) -> Mapping[str, Announcement]:
        """What the proxies say, by their names; what is no announcement is left out."""
        try:
            reply = self._reply_to(encoded(b"HGETALL", self._proxies), _MOST_PROXIES * _MOST_BYTES_OF_PROXY)
        except RefusedReply as error:
            raise ValkeyError(f"the server has more than {_MOST_PROXIES} proxies of fleet {self._fleet}") from error
        words = reply if isinstance(reply, tuple) else ()
        said: dict[str, Announcement] = {}
        for name, content in zip(words[::2], words[1::2], strict=False):
            try:
                text = name.decode() if isinstance(name, bytes) else ""
                if is_name(text):
                    said[text] = Announcement.decode(content)
            except (ValueError, RecursionError):
                continue
        return dict(sorted(said.items()))

    def forget(self, proxy: str) -> bool:
        """Remove what a proxy has said; whether there was any."""
        return self._reply_to(encoded(b"HDEL", self._proxies, proxy.encode()), 100) == 1

    def forget_name(self, proxy: str) -> bool:
        """Remove a proxy from those that share rates; whether it was among them.

        Raises ValueError if it still shares any: one that is only out of reach has its part reserved there.
        """
        try:
            record = self._reply_to(encoded(b"HGET", hash_of(proxy), RECORD), _MOST_BYTES_OF_RECORD)
        except RefusedReply as error:
            raise ValueError("what it states of shared rates is too long") from error
        if record is not None:
            raise ValueError("shares rates, or did so within the last 10 min")
        return self._reply_to(encoded(b"HDEL", NAMES, proxy.encode()), 100) == 1

    def _reply_to(self, command: bytes, most_bytes: int) -> Reply:
        (reply,) = self._ask([command], most_bytes)
        if isinstance(reply, ErrorReply):
            raise ValkeyError(f"the server refuses: {reply.text}")
        return reply
