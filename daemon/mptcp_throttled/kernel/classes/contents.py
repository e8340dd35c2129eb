"""The contents of a set or map of ours, of which only what has changed is decoded again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import NamedTuple

from mptcp_throttle.model import FourTuple
from mptcp_throttled.vocabulary.kernel_state import AssignmentState


class Contents(NamedTuple):
    """Raw elements, how many of them are `foreign` (not as we add them), the assignments of the others.

    `state` shows `assignments` through a proxy, which readers cannot change. Copying a dict hashes no key again.
    """

    elements: frozenset[bytes]
    foreign: int
    assignments: dict[FourTuple, int]
    state: AssignmentState


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
    assignments = {} if last is None else last.assignments.copy()
    foreign, before = (0, frozenset()) if last is None else (last.foreign, last.elements)
    for removed in before - raw:
        assignment = decode(removed)
        if assignment is None:
            foreign -= 1
        else:
            del assignments[assignment[0]]
    for added in raw - before:
        assignment = decode(added)
        if assignment is None:
            foreign += 1
        else:
            assignments[assignment[0]] = assignment[1]
    return Contents(raw, foreign, assignments, AssignmentState(MappingProxyType(assignments), altered=foreign > 0))
