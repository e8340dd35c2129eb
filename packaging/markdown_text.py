"""Text in Markdown: a line for each sentence, lists, and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from mptcp_throttle.units import DURATION_SYNTAX, RATE_SYNTAX, SIZE_SYNTAX

_ITEM: Final = re.compile(r"([a-z_]+): (.*)")
_SYNTAXES: Final = {DURATION_SYNTAX: "duration", RATE_SYNTAX: "rate", SIZE_SYNTAX: "size"}


def prose(lines: Iterable[str]) -> list[str]:
    """Lines of plain text as paragraphs; an empty line separates them, and a line that begins with `word: ` is an item.

    The items are a list. A line that follows an item belongs to it.
    """
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if not line or _ITEM.match(line):
            paragraphs.append([])
        if line:
            paragraphs[-1].append(line)
    made: list[str] = []
    was_item = False
    for text in map(" ".join, filter(None, paragraphs)):
        item = _ITEM.match(text)
        if made and not (item and was_item):
            made.append("")
        made += _item(item[1], item[2]) if item else sentences(text)
        was_item = item is not None
    return made


def sentences(text: str) -> list[str]:
    """The sentences of a text."""
    return re.split(r"(?<=\.) (?=\S)", text)


def _item(word: str, text: str) -> Iterator[str]:
    first, *rest = sentences(text)
    yield f"* `{word}`: {first}"
    yield from (f"  {sentence}" for sentence in rest)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table; the cells are Markdown."""
    return [_row(head), "|" + "---|" * len(head), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def with_named_units(text: str, page: str = "") -> str:
    """The text, with a link to the table of units on `page` instead of what each unit may be."""
    for syntax, name in _SYNTAXES.items():
        text = text.replace(syntax, f"a [{name}]({page}#units)")
    return text


def code(text: str) -> str:
    """The text as it is typed."""
    return f"`{text}`"
