"""Asks the daemon once per second, however many viewers the page has."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mptcp_throttle.findings import daemon_findings
from mptcp_throttle.rpc import Json, RpcError
from mptcp_throttle.rpc.wire import Order
from mptcp_throttle_web.hiding import Hider

_log = logging.getLogger("mptcp-throttle-web")

Ask = Callable[..., Json]
"""Calls a method of the daemon with parameters, in any thread. Raises RpcError."""

LOOK_SECONDS: Final = 1.0
MAX_VIEWERS: Final = 64
_MAX_QUESTIONS: Final = 16
# At most half of each limit is available to strangers: visitors who are not in the group and have not logged in.
_STRANGERS: Final = 2
_DECISIONS: Final = 30
_HISTORY_SECONDS: Final = 2.0
_MAX_HISTORIES: Final = 64
# At most so many threads of the daemon answer the page.
_AT_A_TIME: Final = 2


class Busy(Exception):
    """Too many viewers, or too many different questions."""


class Question(NamedTuple):
    """What a viewer asks for: a number of clients per network, their order, a pattern; `hidden`: without addresses."""

    number: int
    order: Order
    pattern: str
    hidden: bool


@dataclass(slots=True)
class _Channel:
    """The latest answer to a question, for all its viewers."""

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
    """A browser that follows the answers to a question, until `close`."""

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
        self._channels: dict[Question, _Channel] = {}
        self._histories: dict[tuple[str, int], tuple[float, asyncio.Task[Json]]] = {}
        self._asking = asyncio.Semaphore(_AT_A_TIME)
        # A client that requests many histories delays only other histories.
        self._reading = asyncio.Semaphore(1)
        self._closed = False

    def open(self, question: Question, *, is_stranger: bool) -> Viewer:
        """Raises Busy. The viewer counts until it is closed."""
        part = _STRANGERS if is_stranger else 1
        is_new = question not in self._channels
        viewers = sum(channel.viewers for channel in self._channels.values())
        if viewers >= MAX_VIEWERS // part or (is_new and len(self._channels) >= _MAX_QUESTIONS // part):
            raise Busy
        if is_new:
            channel = self._channels[question] = _Channel()
            channel.task = asyncio.create_task(self._follow(question, channel))
        return Viewer(self._channels[question])

    async def _follow(self, question: Question, channel: _Channel) -> None:
        """Ask until there are no viewers. A viewer that closes and opens again within a period gets the same answer."""
        clock = asyncio.get_running_loop().time
        while channel.viewers and not self._closed:
            began = clock()
            channel.publish(await self._in_thread(self._asking, self._look, question))
            used = clock() - began
            # A daemon that answers slowly is asked less often.
            await asyncio.sleep(max(LOOK_SECONDS - used, used))
        del self._channels[question]
        channel.end()

    def _look(self, question: Question) -> bytes:
        data: Json
        try:
            status = self._ask("status")
            top = self._ask("top", question.number, question.order, question.pattern)
            decisions = self._ask("decisions", _DECISIONS)["decisions"]
            attention = [finding._asdict() for finding in daemon_findings(status) if finding.problem is not None]
            data = {
                "problem": None,
                "daemon": status["daemon"],
                "sniffer": status["sniffer"],
                "top": top,
                "rates_age": None if top["observed_at"] is None else max(time.time() - top["observed_at"], 0.0),
                "attention": attention,
                "decisions": decisions,
            }
        except RpcError as error:
            data = {"problem": str(error)}
        except (KeyError, TypeError) as error:
            data = {"problem": f"the daemon has another version than this page: {error!r}"}
        try:
            if question.hidden:
                data = self._hider.hidden(data)
        except RecursionError:
            data = {"problem": "the daemon's answer is nested too deeply"}
        return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"

    async def history(self, name: str, seconds: int, *, is_stranger: bool) -> Json:
        """What a network or a client has carried, as columns: `start` of each period, in seconds since the epoch, and
        IP bytes as bits per second; and the sums of what was sent throttled and held back. Raises RpcError and Busy.

        All requests within two seconds share one answer.
        """
        now = asyncio.get_running_loop().time()
        self._histories = {key: kept for key, kept in self._histories.items() if kept[0] > now or not kept[1].done()}
        key = name, seconds
        kept = self._histories.get(key)
        if kept is None:
            if len(self._histories) >= _MAX_HISTORIES // (_STRANGERS if is_stranger else 1):
                raise Busy
            task = asyncio.create_task(self._in_thread(self._reading, self._read_history, name, seconds))
            kept = self._histories[key] = now + _HISTORY_SECONDS, task
        # Another request may wait for it, too.
        return await asyncio.shield(kept[1])

    def _read_history(self, name: str, seconds: int) -> Json:
        answer = self._ask("history", name, seconds)
        resolution, periods = answer["resolution"], answer["periods"]

        def rates(column: str) -> list[int]:
            return [round(8 * period[column] / resolution) for period in periods]

        return {
            "kind": answer["kind"],
            "resolution": resolution,
            "start": [period["start"] for period in periods],
            "sent": rates("ip_sent"),
            "received": rates("ip_received"),
            **{column: sum(period[column] for period in periods) for column in ("ip_sent_throttled", "held_back_ms")},
        }

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
