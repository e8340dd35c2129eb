"""Answers of the daemon that all who ask the same within some seconds share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

MAX_ANSWERS: Final = 128
# At most half of the limit is available to strangers: visitors who are not in the group and have not logged in.
STRANGERS: Final = 2
# After an answer to a stranger, strangers wait so many times what it took: they cannot keep the daemon busy.
_REST_FACTOR: Final = 4

T = TypeVar("T")


class Busy(Exception):
    """Too many viewers, or too many different questions."""


class SharedAnswers:
    """At most `MAX_ANSWERS` at a time. All methods are for one event loop."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}
        # A client that asks for much delays only others that ask, and a stranger only strangers.
        self._reading = {True: asyncio.Semaphore(1), False: asyncio.Semaphore(1)}

    async def get(self, key: Hashable, seconds: float, find: Callable[[], T], *, is_stranger: bool) -> T:
        """What `find` answers, in a thread. All who ask for this `key` within `seconds` share it.

        Raises what `find` raises, and Busy.
        """
        now = asyncio.get_running_loop().time()
        self._kept = {each: kept for each, kept in self._kept.items() if kept[0] > now or not kept[1].done()}
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= MAX_ANSWERS // (STRANGERS if is_stranger else 1):
                raise Busy
            kept = self._kept[key] = now + seconds, asyncio.create_task(self._find(find, is_stranger=is_stranger))
        # Another request may wait for it, too.
        answer: T = await asyncio.shield(kept[1])
        return answer

    async def _find(self, find: Callable[[], T], *, is_stranger: bool) -> T:
        loop, reading = asyncio.get_running_loop(), self._reading[is_stranger]
        await reading.acquire()
        began = loop.time()
        try:
            return await asyncio.to_thread(find)
        finally:
            loop.call_later(_REST_FACTOR * (loop.time() - began) if is_stranger else 0.0, reading.release)
