"""Quantities of scenarios that the configuration does not have: amounts of data in decimal units, shares, moments."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import PlainValidator

from mptcp_throttle.config.validation import parsed_by
from mptcp_throttle.units import parse_duration, parse_quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mptcp_throttle.units import Rate

_AMOUNT_UNITS: Final = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_MAX_AMOUNT: Final = 10**10
_AMOUNT_SYNTAX: Final = "a number with B, kB, MB or GB, up to 10GB, such as 100MB"
_MOMENT_SYNTAX: Final = "a time such as 5s, the name of an event, or cap; or one of these two + a time"
_EVENT: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_CLOCK_FORM: Final = "%Y-%m-%d %H:%M:%S"
_QUEUE_SYNTAX: Final = "a time such as 50ms, or an amount of data such as 62kB"


@dataclass(frozen=True, slots=True)
class Queue:
    """How much a link holds back before it drops: what its rate carries in `seconds`, or a number of bytes."""

    seconds: float | None
    size: int | None

    @classmethod
    def parse(cls, text: str) -> Queue:
        """Read `50ms` or `62kB`. Raises ValueError with what is allowed."""
        with suppress(ValueError):
            return cls(parse_duration(text), None)
        with suppress(ValueError):
            return cls(None, _parse_amount(text))
        raise ValueError(f"is not a queue; allowed: {_QUEUE_SYNTAX}")

    def bytes_at(self, rate: Rate) -> int:
        """The length of the queue in bytes on a link of that rate."""
        return round(self.seconds * rate.bytes_per_second) if self.seconds is not None else self.size or 0


@dataclass(frozen=True, slots=True)
class Moment:
    """A time in a run: `seconds` after the event of that name, or after the start if there is none."""

    seconds: float
    event: str | None = None

    @classmethod
    def parse(cls, text: str) -> Moment:
        """Read `5s`, `cap` or `cap + 1500ms`. Raises ValueError with what is allowed."""
        event, plus, duration = (part.strip() for part in text.rpartition("+"))
        with suppress(ValueError):
            if plus and _EVENT.fullmatch(event):
                return cls(parse_duration(duration), event)
            if not plus:
                return cls(0.0, duration) if _EVENT.fullmatch(duration) else cls(parse_duration(duration))
        raise ValueError(f"is not a moment; allowed: {_MOMENT_SYNTAX}")

    def scaled(self, factor: float) -> Moment:
        """The moment with its time multiplied."""
        return Moment(self.seconds * factor, self.event)

    def resolve(self, moments: Mapping[str, float]) -> float | None:
        """Seconds since the start; None if its event is not among `moments`, which are those of the events."""
        if self.event is None:
            return self.seconds
        return moments[self.event] + self.seconds if self.event in moments else None

    def __str__(self) -> str:
        if self.event is None:
            return f"{self.seconds:g} s"
        return f"{self.event} + {self.seconds:g} s" if self.seconds else self.event


def _parse_amount(text: str) -> int:
    return round(parse_quantity(text, _AMOUNT_UNITS, _MAX_AMOUNT, "amount of data", _AMOUNT_SYNTAX))


def _parse_clock(text: str) -> datetime:
    with suppress(ValueError):
        return datetime.strptime(text, _CLOCK_FORM).replace(tzinfo=UTC)
    raise ValueError("is not a time of a clock; allowed: a date and a time in UTC, such as 2027-01-31 23:59:58")


def _parse_percent(text: str) -> float:
    return parse_quantity(text.replace("%", " percent"), {"percent": 1.0}, 100.0, "share", "0% to 100%, such as 2.5%")


def number(lowest: float, highest: float) -> PlainValidator:
    """A validator: a number between these. Our YAML knows no fractions: they come as text."""

    def parse(value: object) -> float:
        try:
            result = float(str(value))
        except ValueError:
            result = float("nan")
        if isinstance(value, bool) or not lowest <= result <= highest:
            raise ValueError(f"allowed: a number from {lowest:g} to {highest:g}")
        return result

    return PlainValidator(parse)


MomentText = Annotated[Moment, parsed_by(Moment.parse)]
Amount = Annotated[int, parsed_by(_parse_amount)]
ClockText = Annotated[datetime, parsed_by(_parse_clock)]
Percent = Annotated[float, parsed_by(_parse_percent)]
QueueText = Annotated[Queue, parsed_by(Queue.parse)]
