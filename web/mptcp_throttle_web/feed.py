"""Asks the daemon once per second, however many viewers the page has."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from mptcp_throttle.rpc import Json, RpcError
from mptcp_throttle_web.hiding import Hider
from mptcp_throttle_web.overview import overview
from mptcp_throttle_web.questions import Ask, Asked, Kind
from mptcp_throttle_web.shared_answers import STRANGERS, Busy, SharedAnswers

_log = logging.getLogger("mptcp-throttle-web")

Form = Callable[[Json], bytes]
"""How an answer is written: the same function for all who share it."""

_Addresses = Literal["plain", "hidden"]
"""How a channel shows addresses: as they are, or with names in their place."""

LOOK_SECONDS: Final = 1.0
MAX_VIEWERS: Final = 64
# At most so many threads of the daemon answer the page.
_AT_A_TIME: Final = 2


@dataclass(slots=True)
class _Channel:
    """The latest answer, with or without addresses, for all its viewers."""

    viewers: int = 0
    answer: bytes = b""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    ended: bool = False

    def publish(self, answer: bytes) -> None:
        """Pass the answer to all viewers of the channel."""
        self.answer = answer
        self.changed.set()
        self.changed = asyncio.Event()

    def end(self) -> None:
        """Let all viewers stop."""
        self.ended = True
        self.publish(b"")


class Viewer:
    """A browser that follows the answers of a channel, until `close`."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        channel.viewers += 1

    async def events(self, may_see: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Server-sent events: the present answer, and each new one, as long as `may_see` holds."""
        channel = self._channel
        if channel.answer:
            yield channel.answer
        while not channel.ended:
            await channel.changed.wait()
            if channel.ended or not may_see():
                return
            yield channel.answer

    def close(self) -> None:
        """Stop counting this viewer."""
        self._channel.viewers -= 1


class Feed:
    """Asks the daemon while the page has viewers. All methods are for one event loop."""

    def __init__(self, ask: Ask, hider: Hider) -> None:
        self._ask = ask
        self._hider = hider
        self._channels: dict[_Addresses, _Channel] = {}
        self._shared = SharedAnswers()
        self._asking = asyncio.Semaphore(_AT_A_TIME)
        self._closed = False

    def open(self, *, hidden: bool, is_stranger: bool) -> Viewer:
        """`hidden`: without addresses. Raises Busy. The viewer counts until it is closed."""
        viewers = sum(channel.viewers for channel in self._channels.values())
        if viewers >= MAX_VIEWERS // (STRANGERS if is_stranger else 1):
            raise Busy
        addresses: _Addresses = "hidden" if hidden else "plain"
        if addresses not in self._channels:
            channel = self._channels[addresses] = _Channel()
            channel.task = asyncio.create_task(self._follow(channel, addresses))
        return Viewer(self._channels[addresses])

    async def _follow(self, channel: _Channel, addresses: _Addresses) -> None:
        """Ask until there are no viewers. A viewer that closes and opens again within a period gets the same answer."""
        clock = asyncio.get_running_loop().time
        while channel.viewers and not self._closed:
            began = clock()
            channel.publish(await self._in_thread(self._asking, self._look, addresses == "hidden"))
            used = clock() - began
            # A daemon that answers slowly is asked less often.
            await asyncio.sleep(max(LOOK_SECONDS - used, used))
        del self._channels[addresses]
        channel.end()

    def _look(self, hidden: bool) -> bytes:
        data: Json
        try:
            data = {"problem": None, **overview(self._ask, time.time)}
        except RpcError as error:
            data = {"problem": str(error)}
        except (KeyError, TypeError) as error:
            data = {"problem": f"the daemon has another version than this page: {error!r}"}
        try:
            if hidden:
                data = self._hider.hidden(data)
        except RecursionError:
            data = {"problem": "the daemon's answer is nested too deeply"}
        return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"

    async def answer(self, kind: Kind, asked: Asked, form: Form, *, hidden: bool, is_stranger: bool) -> bytes:
        """The answer to a question, in a form. Raises RpcError, Refused and Busy."""

        def find() -> tuple[Json, bytes]:
            answer = kind.read(self._ask, *asked.parameters)
            return answer, form(self._hider.hidden(answer) if hidden else answer)

        key = kind, asked.parameters, form, hidden
        answer, body = await self._shared.get(key, kind.seconds, find, is_stranger=is_stranger)
        asked.refuse(answer)
        return body

    async def call(self, method: str, *parameters: Json) -> Json:
        """Call any method of the daemon. Raises RpcError."""
        return await self._in_thread(self._asking, self._ask, method, *parameters)

    @staticmethod
    async def _in_thread(at_a_time: asyncio.Semaphore, function: Callable[..., Json], *arguments: object) -> Json:
        async with at_a_time:
            return await asyncio.to_thread(function, *arguments)

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        for channel in self._channels.values():
            channel.end()
