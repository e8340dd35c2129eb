"""Answers that all who ask the same share: bounded in number, and strangers cannot keep the daemon busy."""

from __future__ import annotations

import asyncio
import time

import pytest

from mptcp_throttle_web.shared_answers import MAX_ANSWERS, STRANGERS, Busy, SharedAnswers


def test_all_who_ask_the_same_within_its_seconds_share_an_answer() -> None:
    found: list[int] = []

    def find() -> int:
        found.append(1)
        return len(found)

    async def ask() -> list[int]:
        shared = SharedAnswers()
        together = await asyncio.gather(*(shared.get("key", 0.2, find, is_stranger=False) for _ in range(5)))
        await asyncio.sleep(0.3)
        return [*together, await shared.get("key", 0.2, find, is_stranger=False)]

    assert asyncio.run(ask()) == [1, 1, 1, 1, 1, 2]


def test_strangers_may_have_half_of_all_answers() -> None:
    async def ask() -> None:
        shared = SharedAnswers()
        for number in range(MAX_ANSWERS // STRANGERS):
            await shared.get(number, 60.0, int, is_stranger=False)
        with pytest.raises(Busy):
            await shared.get("more", 60.0, int, is_stranger=True)
        assert await shared.get("more", 60.0, int, is_stranger=False) == 0

    asyncio.run(ask())


def test_strangers_wait_after_an_answer_that_took_long_and_others_do_not() -> None:
    def find() -> None:
        time.sleep(0.1)

    async def ask() -> tuple[float, float]:
        shared, began = SharedAnswers(), time.monotonic()
        await shared.get("first", 60.0, find, is_stranger=True)
        await shared.get("of the group", 60.0, int, is_stranger=False)
        of_the_group = time.monotonic() - began
        await shared.get("second", 60.0, int, is_stranger=True)
        return of_the_group, time.monotonic() - began

    of_the_group, stranger = asyncio.run(ask())
    assert stranger >= 0.1 + 4 * 0.1
    assert of_the_group < stranger
