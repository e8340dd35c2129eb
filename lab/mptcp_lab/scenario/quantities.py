"""Quantities that scenarios have and the configuration has not: amounts of data in decimal units, shares, ratios."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import PlainValidator

from mptcp_throttle.config.validation import parsed_by
from mptcp_throttle.units import parse_duration, parse_quantity

if TYPE_CHECKING:
    from mptcp_throttle.units import Rate

_AMOUNT_UNITS: Final = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_MAX_AMOUNT: Final = 10**10
_AMOUNT_SYNTAX: Final = "a number with B, kB, MB or GB, up to 10GB, such as 100MB"
_QUEUE_SYNTAX: Final = "a time such as 50ms, or an amount of data such as 62kB"


@dataclass(frozen=True, slots=True)
class Queue:
    """How much a link holds back before it drops: for so many `seconds` at its rate, or so many bytes."""

    seconds: float | None
    size: int | None

    @classmethod
    def parse(cls, text: str) -> Queue:
        """Read `50ms` or `62kB`. Raises ValueError with what is allowed."""
        for seconds in (True, False):
            try:
                return cls(parse_duration(text), None) if seconds else cls(None, _parse_amount(text))
            except ValueError:
                pass
        raise ValueError(f"is not a queue; allowed: {_QUEUE_SYNTAX}")

    def bytes_at(self, rate: Rate) -> int:
        """Its length in bytes on a link of that rate."""
        return round(self.seconds * rate.bytes_per_second) if self.seconds is not None else self.size or 0


def _parse_amount(text: str) -> int:
    return round(parse_quantity(text, _AMOUNT_UNITS, _MAX_AMOUNT, "amount of data", _AMOUNT_SYNTAX))


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


Amount = Annotated[int, parsed_by(_parse_amount)]
Percent = Annotated[float, parsed_by(_parse_percent)]
QueueText = Annotated[Queue, parsed_by(Queue.parse)]
