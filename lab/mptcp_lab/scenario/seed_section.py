"""What a scenario says of its seed: the document, the lines it relies on, what was found there, numbers and effects."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, PlainValidator

from mptcp_lab.scenario.quantities import number
from mptcp_throttle.config.validation import Section, each_once, list_of, one_of, parsed_by, text_that

Text = Annotated[str, text_that(bool, "text in one line")]

_FIGURE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9.+_-]*/)?[a-z0-9][a-z0-9_-]*")
_LINES: Final = re.compile(r"([1-9]\d{0,4})(?:-([1-9]\d{0,4}))?")
_CITED: Final = re.compile(r"(\d+(?:\.\d+)?)(?: \* (\d+))? @ ([1-9]\d{0,4})")
_NUMBER: Final = re.compile(r"(?<![\w.,])\d+(?:[.,]\d+)*")
_MAX_LINES: Final = 60


class Seed(StrEnum):
    """A document whose experiments the lab repeats."""

    S0 = "S0"
    S1 = "S1"
    S2 = "S2"
    S3 = "S3"
    S4 = "S4"


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines `first` to `last` of a seed, from 1."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Lines:
        """Read `617` or `617-620`. Raises ValueError with what is allowed."""
        match = _LINES.fullmatch(text)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError("allowed: a line such as 617, or lines such as 617-620")
        return cls(int(match[1]), int(match[2] or match[1]))

    def __str__(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"

    def each(self) -> range:
        """The numbers of all lines."""
        return range(self.first, self.last + 1)


@dataclass(frozen=True, slots=True)
class Cited:
    """A number of a seed: as `written` on its `line`, times `factor` where the lab has another unit."""

    written: float
    factor: int
    line: int

    @classmethod
    def parse(cls, text: str) -> Cited:
        """Read `30.22 @ 617`, or `3 * 1000 @ 2219`. Raises ValueError with what is allowed."""
        match = _CITED.fullmatch(text)
        if match is None:
            raise ValueError("allowed: NUMBER @ LINE, or NUMBER * FACTOR @ LINE, such as 30.22 @ 617")
        return cls(float(match[1]), int(match[2] or 1), int(match[3]))

    @property
    def value(self) -> float:
        """The number in the unit of the figure."""
        return self.written * self.factor


def numbers_in(text: str) -> list[float]:
    """The numbers of a text; a comma is a decimal point, and what has several points, such as an address, is none."""
    found = (match.group().replace(",", ".") for match in _NUMBER.finditer(text))
    return [float(digits) for digits in found if digits.count(".") < 2]


def _reference(value: object) -> str:
    if not isinstance(value, str) or not _FIGURE.fullmatch(value):
        raise ValueError("allowed: a figure of this file, or VARIANT/FIGURE")
    return value


_LineList = Annotated[
    tuple[Annotated[Lines, parsed_by(Lines.parse)], ...], list_of("lines", _MAX_LINES), AfterValidator(each_once)
]
_Reference = Annotated[str, PlainValidator(_reference)]
_Ratio = Annotated[float, number(0, 10**6)]


class SeedSection(Section):
    """Where in which seed set-up and finding are.

    Every number of `finding` is on one of the `lines`. `differs`: how our set-up differs.
    """

    document: Annotated[Seed, one_of(Seed)]
    lines: _LineList
    finding: Text
    differs: Text | None = None


class EffectSection(Section):
    """A finding of the seed as a relation between two measured figures: `of` divided by `to` is in a range.

    With `apart`, the larger of the two divided by the smaller is at least that. `because`: why it is not so here.
    `not_comparable`: why the lab cannot compare; then it needs no figures.
    """

    lines: _LineList
    of: _Reference | None = None
    to: _Reference | None = None
    at_least: _Ratio | None = None
    at_most: _Ratio | None = None
    apart: _Ratio | None = None
    because: Text | None = None
    not_comparable: Text | None = None
