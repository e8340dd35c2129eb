"""When a window of a schedule holds: days or dates, and a time of day."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Final, Self

WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DAY_MINUTES: Final = 24 * 60
DAY: Final = timedelta(days=1)
WEEK: Final = 7
_ALLOWED: Final = (
    'allowed: days or dates, a time of day, or both, such as "Mon..Fri 08:00-18:00" or "2026-12-24..2026-12-26"'
)
_MOST_DATED_DAYS: Final = 366
_YEARS: Final = range(2000, 2100)
_MOST_CHARACTERS: Final = 60
_DATES: Final = re.compile(r"(\d{4}-\d{2}-\d{2})(?:\.\.(\d{4}-\d{2}-\d{2}))?", re.ASCII)
_TIMES: Final = re.compile(r"(\d{2}):(\d{2})-(\d{2}):(\d{2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class When:
    """When a window holds: on these weekdays (0 is Monday), or from `first` to `last`, from minute `begin` of the day
    to minute `end`, which is not included, and is on the next day if it is not after `begin`."""

    text: str
    weekdays: frozenset[int]
    first: date | None
    last: date | None
    begin: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `Mon..Fri 08:00-18:00`, `Sat,Sun`, `01:00-06:00` or `2026-12-24..2026-12-26`. Raises ValueError."""
        words = text.split(" ") if len(text) <= _MOST_CHARACTERS else []
        times = _TIMES.fullmatch(words[-1]) if words else None
        begin, end = (0, DAY_MINUTES) if times is None else _span(*times.groups())
        days = words if times is None else words[:-1]
        if times is not None and not days:
            return cls(text, frozenset(range(WEEK)), None, None, begin, end)
        if len(days) != 1:
            raise ValueError(_ALLOWED)
        dates = _DATES.fullmatch(days[0])
        if dates is None:
            return cls(text, _weekdays(days[0]), None, None, begin, end)
        first, last = _date(dates[1]), _date(dates[2] or dates[1])
        if not timedelta() <= last - first < _MOST_DATED_DAYS * DAY:
            raise ValueError(f"allowed: the earlier date first, and at most {_MOST_DATED_DAYS} days")
        return cls(text, frozenset(range(WEEK)), first, last, begin, end)

    def holds(self, local: datetime) -> bool:
        """Whether it holds at this local time."""
        minute, day = 60 * local.hour + local.minute, local.date()
        if self.begin < self.end:
            return self.begin <= minute < self.end and self._begins_on(day)
        return (minute >= self.begin and self._begins_on(day)) or (minute < self.end and self._begins_on(day - DAY))

    def is_over(self, local: datetime) -> bool:
        """Whether it has dates, and does not hold at this local time or later."""
        if self.last is None:
            return False
        end = datetime.combine(self.last, time()) + timedelta(minutes=self.end)
        return local.replace(tzinfo=None) >= (end if self.begin < self.end else end + DAY)

    def _begins_on(self, day: date) -> bool:
        if self.first is not None and self.last is not None and not self.first <= day <= self.last:
            return False
        return day.weekday() in self.weekdays

    def __str__(self) -> str:
        return self.text


def _weekdays(text: str) -> frozenset[int]:
    weekdays: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        if first not in WEEKDAYS or (dots and last not in WEEKDAYS):
            raise ValueError(_ALLOWED)
        begin = WEEKDAYS.index(first)
        length = (WEEKDAYS.index(last) - begin) % WEEK if dots else 0
        weekdays += ((begin + days) % WEEK for days in range(length + 1))
    if len(set(weekdays)) < len(weekdays):
        raise ValueError("has a day twice; allowed: each day once")
    return frozenset(weekdays)


def _date(text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"has no date {text}; {_ALLOWED}") from error
    if day.year not in _YEARS:
        raise ValueError(f"has no date {text}; allowed: years {_YEARS.start} to {_YEARS.stop - 1}")
    return day


def _span(*times: str) -> tuple[int, int]:
    """The minutes of the day at which a window begins and ends."""
    begin, end = _minute(*times[:2]), _minute(*times[2:])
    if begin in {end, DAY_MINUTES}:
        raise ValueError(f"has no duration from {begin // 60:02}:{begin % 60:02} on; {_ALLOWED}")
    return begin, end


def _minute(hours: str, minutes: str) -> int:
    minute = 60 * int(hours) + int(minutes)
    if int(minutes) > 59 or minute > DAY_MINUTES:
        raise ValueError(f"has no time {hours}:{minutes}; allowed: 00:00 to 24:00")
    return minute
