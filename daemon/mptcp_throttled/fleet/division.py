"""The max-min fair division of a whole among those who want a part of it."""

from __future__ import annotations

from collections.abc import Mapping


def divided(whole: int, wanted: Mapping[str, int]) -> dict[str, int]:
    """What each gets: never more than it wants, all together never more than `whole`, and who gets less than it wants
    gets no less than any other. The same for all who know the same.
    """
    left, got = max(whole, 0), {}
    by_size = sorted(wanted.items(), key=lambda item: (item[1], item[0]))
    for position, (name, most) in enumerate(by_size):
        got[name] = min(most, left // (len(by_size) - position))
        left -= got[name]
    return got
