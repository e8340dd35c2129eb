"""Types of command-line arguments whose errors say what is allowed."""

from __future__ import annotations

from argparse import ArgumentTypeError
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Value = TypeVar("_Value")


def checked(
    parse: Callable[[str], _Value], allowed: str, holds: Callable[[_Value], bool] = lambda _: True
) -> Callable[[str], _Value]:
    """A `type` for argparse: what `parse` makes of the text, if `holds` accepts it."""

    def read(text: str) -> _Value:
        with suppress(ValueError):
            if holds(value := parse(text)):
                return value
        raise ArgumentTypeError(f"{text!r}: allowed: {allowed}")

    return read
