"""Manual pages, section 5, from configuration files that explain each key in a comment above it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from roff import escaped, paragraphs

_KEY: Final = re.compile(r"( *)([a-z0-9_]+):(?: (.*))?")


@dataclass(slots=True)
class _Setting:
    """A key with the keys that it is in, and its value in the file; a key that contains keys has none."""

    path: str
    value: str | None

    def add_item(self, item: str) -> None:
        self.value = f"[{item}]" if self.value is None else f"{self.value[:-1]}, {item}]"


@dataclass(slots=True)
class _Entry:
    """An explanation, and the settings that it explains."""

    lines: list[str]
    settings: list[_Setting] = field(default_factory=list)


def config_page(text: str) -> str:
    """The sections DESCRIPTION, from the comment that begins the file, and OPTIONS, in the order of the file."""
    description, entries = _parse(text)
    lines = [
        ".SH DESCRIPTION",
        *paragraphs(description, ".PP"),
        ".SH OPTIONS",
        "The values are those of the file as installed.",
    ]
    for entry in entries:
        for number, setting in enumerate(entry.settings):
            value = "" if setting.value is None else f": {setting.value}"
            lines += [".TQ" if number else ".TP", rf"\fB{escaped(setting.path)}\fR{escaped(value)}"]
        lines += paragraphs(entry.lines, ".IP")
    return "\n".join(lines) + "\n"


def _parse(text: str) -> tuple[list[str], list[_Entry]]:
    description: list[str] = []
    entries: list[_Entry] = []
    comment: list[str] = []
    outer: list[tuple[int, str]] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped[1:].strip())
        elif not stripped:
            if not entries and not outer:
                description += [*([""] if description else []), *comment]
            comment = []
        elif stripped.startswith("- "):
            entries[-1].settings[-1].add_item(stripped[2:])
        elif match := _KEY.fullmatch(line):
            indent, key, value = len(match[1]), match[2], match[3]
            outer = [(column, name) for column, name in outer if column < indent]
            outer.append((indent, key))
            path = ".".join(name for _, name in outer)
            if comment:
                entries.append(_Entry(comment))
                comment = []
            elif value is None:
                continue
            elif entries[-1].settings[-1].value is None:
                # The comment above a key explains the keys in it that have none of their own.
                entries[-1].settings.pop()
            entries[-1].settings.append(_Setting(path, value))
        else:
            raise ValueError(f"neither a comment nor a key nor an item: {line}")
    return description, entries
