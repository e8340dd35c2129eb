"""The contents of a set or map of ours, of which only what has changed is decoded again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import NamedTuple

from mptcp_throttle.model import FourTuple
from mptcp_throttled.vocabulary.kernel_state import MarkState


class Contents(NamedTuple):
    """Raw elements, how many of them are `foreign` (not as we add them), the marks of the others.

    `state` shows `marks` through a proxy, which readers cannot change; a dict is copied without hashing its keys again.
    """

    elements: frozenset[bytes]
    foreign: int
    marks: dict[FourTuple, int]
    state: MarkState


def read_contents(
    last: Contents | None,
    rows: Iterable[bytes],
    size: int,
    decode: Callable[[bytes], tuple[FourTuple, int] | None],
) -> Contents:
    """What the kernel has listed in `rows`, each several elements of `size` bytes; `decode` returns None if not ours.

    Only elements that the `last` contents do not have are decoded.
    """
    raw = frozenset(row[begin : begin + size] for row in rows for begin in range(0, len(row), size))
    if last is not None and raw == last.elements:
        return last
    marks = {} if last is None else last.marks.copy()
    foreign, before = (0, frozenset()) if last is None else (last.foreign, last.elements)
    for removed in before - raw:
        mark = decode(removed)
        if mark is None:
            foreign -= 1
        else:
            del marks[mark[0]]
    for added in raw - before:
        mark = decode(added)
        if mark is None:
            foreign += 1
        else:
            marks[mark[0]] = mark[1]
    return Contents(raw, foreign, marks, MarkState(MappingProxyType(marks), altered=foreign > 0))
