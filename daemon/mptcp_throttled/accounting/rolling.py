"""What is used of a rolling budget, by parts of time: a part leaves, and counts no longer, when it is too old.

A part is an hour of a day, six hours of a week, or a day of a month, which has 30 days here. Parts begin at multiples
of their length in UTC. The present part counts, and as many parts before it as make up the whole time. So a byte stops
counting at most one part too late, and never too early.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from mptcp_throttle.model import Every
from mptcp_throttle.periods import Period
from mptcp_throttled.vocabulary.budgets import Subject, Use

_HOUR: Final = 3600


class Parts(NamedTuple):
    """The length of a part in seconds, and the number of parts before the present one that count."""

    seconds: int
    number: int


PARTS: Final = {
    Every.DAY: Parts(_HOUR, 24),
    Every.WEEK: Parts(6 * _HOUR, 28),
    Every.MONTH: Parts(24 * _HOUR, 30),
}


def part_at(every: Every, at: float) -> Period:
    """The part that contains the instant `at`, in seconds since the epoch."""
    seconds = PARTS[every].seconds
    start = at // seconds * seconds
    return Period(start, start + seconds)


def rolling_period(every: Every, present: Period) -> Period:
    """The time that counts while this part is present."""
    seconds, number = PARTS[every]
    return Period(present.start - number * seconds, present.end)


class RollingUse:
    """What each subject has used in each part, by the number of the part since the epoch.

    `changed` are the parts of subjects that are not written yet. Parts with numbers below `dropped` were dropped since
    the last writing.
    """

    def __init__(self, every: Every) -> None:
        self._parts = PARTS[every]
        self.uses: dict[Subject, dict[int, Use]] = {}
        self.changed: set[tuple[Subject, int]] = set()
        self.dropped = 0

    def number_of(self, part: Period) -> int:
        """The number of a part."""
        return int(part.start) // self._parts.seconds

    def add(self, subject: Subject, part: Period, added: Use) -> None:
        """Count what a subject has used in a part."""
        of_subject, number = self.uses.setdefault(subject, {}), self.number_of(part)
        of_subject[number] = of_subject.get(number, Use()).plus(added)
        self.changed.add((subject, number))

    def change(self, subject: Subject, part: Period, before: Use, after: Use) -> None:
        """Change the sum of a subject from `before` to `after`.

        What was added is used in this part. If the sum is lower, all of it counts as used in this part.
        """
        added = Use(after.used - before.used, after.without_mptcp - before.without_mptcp)
        if min(added) >= 0:
            self.add(subject, part, added)
            return
        self.changed |= {(subject, number) for number in self.uses.pop(subject, ())}
        self.add(subject, part, after)

    def changes(self) -> dict[tuple[Subject, int], Use]:
        """What is used in each part of a subject that is not written yet."""
        return {(subject, number): self.uses.get(subject, {}).get(number, Use()) for subject, number in self.changed}

    def drop(self, present: Period) -> list[Subject]:
        """Drop the parts that count no longer when this one is present; the subjects that had use in them."""
        first = self.number_of(present) - self._parts.number
        concerned = [subject for subject, parts in self.uses.items() if min(parts) < first]
        for subject in concerned:
            parts = {number: use for number, use in self.uses[subject].items() if number >= first}
            if parts:
                self.uses[subject] = parts
            else:
                del self.uses[subject]
        self.changed = {(subject, number) for subject, number in self.changed if number >= first}
        self.dropped = max(self.dropped, first)
        return concerned

    def move(self, before: Period, after: Period) -> None:
        """Shift all parts by the distance from the part `before` to the part `after`."""
        by = self.number_of(after) - self.number_of(before)
        moved = {subject: {number + by: use for number, use in parts.items()} for subject, parts in self.uses.items()}
        self.clear(max(before, after))
        self.uses = moved
        self.write_all_again()

    def clear(self, present: Period) -> None:
        """Forget all that was used, and drop the parts up to the present one."""
        self.uses, self.changed, self.dropped = {}, set(), self.number_of(present) + 1

    def write_all_again(self) -> None:
        """The database is a new one: every part counts as changed."""
        self.changed = {(subject, number) for subject, parts in self.uses.items() for number in parts}

    def adopt(self, stored: Mapping[Subject, Mapping[int, Use]], present: Period) -> None:
        """Continue from what is stored. What was counted meanwhile was used in the `present` part."""
        meanwhile = {subject: self.sum_of(subject) for subject in self.uses}
        self.uses, self.changed = {subject: dict(parts) for subject, parts in stored.items()}, set()
        for subject, use in meanwhile.items():
            self.add(subject, present, use)

    def sum_of(self, subject: Subject) -> Use:
        """What a subject has used in all parts together."""
        total = Use()
        for use in self.uses.get(subject, {}).values():
            total = total.plus(use)
        return total

    def written(self) -> None:
        """All changes are written."""
        self.changed, self.dropped = set(), 0

    def leaving(self, subject: Subject) -> Iterator[tuple[float, int]]:
        """For each part when it leaves, in seconds since the epoch, and the bytes used in it; the oldest part first."""
        parts: Mapping[int, Use] = self.uses.get(subject, {})
        for number in sorted(parts):
            yield float((number + self._parts.number + 1) * self._parts.seconds), parts[number].used

    def falls_at(self, subject: Subject, excess: float) -> float | None:
        """When parts with more than `excess` bytes in all will have left, in seconds since the epoch; None: never."""
        for at, used in self.leaving(subject):
            excess -= used
            if excess < 0:
                return at
        return None
