"""What is found out once for all who ask within some seconds."""

from __future__ import annotations

from itertools import count

from mptcp_throttled.answers.kept import Kept


def test_what_is_found_is_kept_for_some_seconds() -> None:
    now, numbers = [0.0], count()
    kept = Kept(10.0, lambda: next(numbers), lambda: now[0])
    answers = []
    for at in (0.0, 9.9, 10.0, 19.9, 25.0):
        now[0] = at
        answers.append(kept())
    assert answers == [0, 0, 1, 1, 2]
