"""A value of the configuration file that `setup` proposes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Value:
    """A value, as YAML, and why it is proposed.

    `alternative` is another key of the same section, which may have the value instead. With `only_over_default`, a file
    that has been edited gets it only where it has the default: another value is the operator's choice.
    """

    keys: tuple[str, ...]
    text: str
    reason: str
    alternative: str | None = None
    only_over_default: bool = False
