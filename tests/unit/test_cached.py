"""Answers that take long are computed once for all who ask within some seconds."""

from __future__ import annotations

from itertools import count

from mptcp_throttled.answers.cached import Cached


def test_cached_answer_is_computed_again_when_it_is_too_old() -> None:
    now, numbers = [0.0], count()
    cached = Cached(10.0, lambda: next(numbers), lambda: now[0])
    answers = []
    for at in (0.0, 9.9, 10.0, 19.9, 25.0):
        now[0] = at
        answers.append(cached())
    assert answers == [0, 0, 1, 1, 2]
