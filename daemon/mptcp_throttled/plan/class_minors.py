"""The pool of free class minors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator


class ClassMinors(Iterator[int]):
    """Gives free class minors from `first` on.

    The one that was given back last comes first, since its class may still exist; then the lowest that was never used.
    """

    def __init__(self, first: int) -> None:
        self._first = self._next = self._end = first
        self._free: list[int] = []
        self._resting: list[int] = []

    def __len__(self) -> int:
        return len(self._free) + max(self._end - self._next, 0)

    def __next__(self) -> int:
        if self._free:
            return self._free.pop()
        if self._next >= self._end:
            raise StopIteration
        self._next += 1
        return self._next - 1

    def adopt(self, assigned: Collection[int], unused: Iterable[int]) -> None:
        """Call this before any minor is given out: `assigned` minors are in use, and the `unused` ones of them rest."""
        self._next = max(assigned, default=self._first - 1) + 1
        self._free = [minor for minor in reversed(range(self._first, self._next)) if minor not in assigned]
        self._resting = sorted(unused, reverse=True)

    def release(self, minor: int) -> None:
        """Give a minor back. It rests for one update, since its assignments may still be in the kernel."""
        self._resting.append(minor)

    def free_resting(self, last: int) -> None:
        """Let all minors that were given back be free; `last` is the largest minor that may be given out."""
        self._end = last + 1
        self._free += self._resting
        self._resting.clear()
