"""What proxies report of themselves, and when each was heard of last; pure but for its own state.

A report is believed for what it says of its proxy alone: whoever writes a wrong one shows wrong figures to operators,
and changes no rate and no budget.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from typing import Final, NamedTuple, Self

from mptcp_throttled.fleet.keys import MAX_FIELDS
from mptcp_throttled.vocabulary.fleet import GONE_SECONDS, KnownProxy, Load, proxy_of

MOST_CHARACTERS: Final = 112
"""Of a report."""

LEFT_SECONDS: Final = 172_800.0
"""A proxy that has said nothing for two days has left: totals of the day before are gone, too."""

_VERSION_CHARACTERS: Final = 24
_REPORT: Final = re.compile(
    rf"([0-9]{{1,12}}) ([0-9]{{1,12}}) ([0-9A-Za-z.+~-]{{1,{_VERSION_CHARACTERS}}})"
    r" ([0-9]{1,15}) ([0-9]{1,15}) ([0-9]{1,9}) ([0-9]{1,9})",
    re.ASCII,
)


class Report(NamedTuple):
    """A proxy's `version` and `load`. Each has another `number`; `at` is in seconds since the epoch, by its clock."""

    number: int
    at: int
    version: str
    load: Load

    @classmethod
    def made(cls, number: int, at: int, version: str, load: Load) -> Self:
        """One that `parse` takes. A rate is negative if a socket has taken the place of one that had carried more."""
        return cls(number, at, version[:_VERSION_CHARACTERS], Load(*(max(each, 0) for each in load)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """From the value of a field. Raises ValueError."""
        match = _REPORT.fullmatch(text)
        if match is None:
            raise ValueError("no report of a proxy")
        number, at, version, *load = match.groups()
        return cls(int(number), int(at), version, Load(*map(int, load)))

    def __str__(self) -> str:
        return f"{self.number} {self.at} {self.version} {' '.join(map(str, self.load))}"


class _Seen(NamedTuple):
    """A report, when it was new (`heard`), since when it is known, and when it was last looked for."""

    report: Report
    heard: float
    since: float
    looked: float


class Reports:
    """The last report of each proxy, by its field. For one thread; `now` is in monotonic seconds.

    Of more than `MAX_FIELDS`, those that were heard last. `known` are the fields that may be in hashes of totals: all
    that were in the list, also those that have left it. A new one among `MAX_FIELDS` takes the place of one that has
    been missing for `GONE_SECONDS`, or none: invented names must not push out those of real proxies.
    """

    def __init__(self) -> None:
        self._known: dict[str, float] = {}
        # By when they were heard.
        self._seen: dict[str, _Seen] = {}

    def note(
        self,
        reports: Mapping[str, Report],
        now: float,
        at: float,
        *,
        is_whole: bool,
        unreadable: Set[str] = frozenset(),
    ) -> None:
        """These were read at the time `at`, in seconds since the epoch; if `is_whole`, there are no others.

        `unreadable` ones are there, too, but whether they have changed is not known. Of a report that was there
        before, only its own time tells how old it is. Once it changes, no clock of another host is needed. If none has
        changed, not even that of this proxy, the server may refuse all reports, so none counts as silent.
        """
        seen, self._seen = self._seen, {}
        is_news = not reports.items() <= {field: before.report for field, before in seen.items()}.items()
        if not is_whole:
            self._seen = {
                field: before._replace(looked=now) if is_news and field not in unreadable else before
                for field, before in seen.items()
            }
        for field, report in reports.items():
            before = seen.get(field)
            if before is None:
                self._seen[field] = _Seen(report, now - max(at - report.at, 0.0), now, now)
            elif before.report == report:
                self._seen[field] = before._replace(looked=now) if is_news else before
            else:
                self._seen[field] = _Seen(report, now, now, now)
        latest = sorted(self._seen.items(), key=lambda item: item[1].heard)
        self._seen = dict(latest[-MAX_FIELDS:])
        for field in (*reports, *sorted(unreadable)):
            if field in self._known or self._has_room(now):
                self._known[field] = now

    def _has_room(self, now: float) -> bool:
        """Whether there is room for another known field. If it is full, one that has left is removed."""
        if len(self._known) < MAX_FIELDS:
            return True
        longest_missing = min(self._known, key=self._known.__getitem__)
        has_left = now - self._known[longest_missing] >= GONE_SECONDS
        if has_left:
            del self._known[longest_missing]
        return has_left

    @property
    def known(self) -> Mapping[str, float]:
        """By field when it was in the list last."""
        return self._known

    def proxies(self) -> dict[str, KnownProxy]:
        """What is known of each proxy by its name: of several ledgers, the latest counts."""
        return {
            proxy_of(field): KnownProxy(seen.heard, seen.looked, seen.report.version, seen.report.load)
            for field, seen in self._seen.items()
        }

    def old(self, now: float) -> list[str]:
        """The fields of proxies that have left, none of which was seen to change since `GONE_SECONDS`."""
        return [
            field
            for field, seen in self._seen.items()
            if seen.looked - seen.heard >= LEFT_SECONDS and now - seen.since >= GONE_SECONDS
        ]

    def forget(self, fields: Iterable[str]) -> None:
        """These are deleted."""
        for field in fields:
            self._seen.pop(field, None)
