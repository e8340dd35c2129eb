"""Values on the command line: what cannot be parsed is refused with what is allowed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from mptcp_throttle.units import DURATION_SYNTAX, parse_duration

_T = TypeVar("_T")


def argument(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """For argparse: a ValueError becomes its error message, with the text in front."""

    def convert(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text}: {error}") from error

    return convert


def duration(text: str) -> float:
    """A duration in seconds, not zero. Raises ValueError."""
    seconds = parse_duration(text)
    if not seconds:
        raise ValueError(f"is zero; allowed: {DURATION_SYNTAX}")
    return seconds
