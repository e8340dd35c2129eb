"""Which selftests passed without our services, and did not beside them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from mptcp_lab.selftests.results import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Outcomes = Mapping[str, Outcome]

_ABSENT: Final = "-"
_FORM: Final = "{:62} {:>9} {:>9}  {}"


class Verdict(StrEnum):
    """The verdict of a test. `NOT_JUDGED`: it did not always pass without our services, so it says nothing of them."""

    SAME = "same"
    DIFFERENT = "different"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, slots=True)
class Row:
    """A test, and its outcome in each run without our services and beside them; None: the script did not come to it."""

    test: str
    without: tuple[Outcome | None, ...]
    beside: tuple[Outcome | None, ...]

    @property
    def verdict(self) -> Verdict:
        """What the outcomes say of our services."""
        if set(self.without) != {Outcome.OK}:
            return Verdict.NOT_JUDGED
        return Verdict.SAME if set(self.beside) == {Outcome.OK} else Verdict.DIFFERENT


def compare(without: Sequence[Outcomes], beside: Sequence[Outcomes]) -> list[Row]:
    """A row for each test of a script that was run several times without our services, and beside them."""
    tests = dict.fromkeys(test for run in (*without, *beside) for test in run)
    return [
        Row(test, tuple(run.get(test) for run in without), tuple(run.get(test) for run in beside)) for test in tests
    ]


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of a table: each test with its outcomes, and what they say."""
    yield _FORM.format("test", "without", "beside", "").rstrip()
    for row in rows:
        verdict = "" if row.verdict is Verdict.SAME else row.verdict
        yield _FORM.format(row.test, _summary(row.without), _summary(row.beside), verdict).rstrip()


def _summary(outcomes: Sequence[Outcome | None]) -> str:
    """`ok`, or where outcomes differ, how many of them passed: `2 of 3 ok`."""
    if len(set(outcomes)) == 1:
        return outcomes[0] or _ABSENT
    return f"{Counter(outcomes)[Outcome.OK]} of {len(outcomes)} ok"


def totals(rows: Sequence[Row]) -> str:
    """How many tests there are of each verdict, as in `12 tests: 10 same, 0 different, 2 not judged`."""
    counted = Counter(row.verdict for row in rows)
    return f"{len(rows)} tests: " + ", ".join(f"{counted[verdict]} {verdict}" for verdict in Verdict)
