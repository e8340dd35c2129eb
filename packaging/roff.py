"""Text in the language of man(7)."""

from __future__ import annotations

import re
from collections.abc import Iterable


def escaped(text: str) -> str:
    r"""The text as it is typed: man(7) takes nothing in it for a command, and `-`, here `\-`, not for a hyphen."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq")
    return rf"\&{text}" if text.startswith(".") else text


def paragraphs(lines: Iterable[str], separator: str) -> list[str]:
    """Lines of plain text, in which an empty line separates paragraphs and `x` is typed as it stands."""
    return [re.sub(r"`(.+?)`", r"\\fB\1\\fR", escaped(line)) if line else separator for line in lines]
