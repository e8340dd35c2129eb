"""How lists are written in reasons, notes and refusals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_MOST_NAMED: Final = 5


def listed(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
