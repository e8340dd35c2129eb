"""Configuration files that explain each key in a comment above it: what they explain, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_KEY: Final = re.compile(r"( *)([a-z0-9_]+):(?: (.*))?")


@dataclass(slots=True)
class Setting:
    """A key with the keys that it is in, and its value in the file; a key that contains keys has none."""

    path: str
    value: str | None

    def add_item(self, item: str) -> None:
        """Add an item to a value that is a list."""
        self.value = f"[{item}]" if self.value is None else f"{self.value[:-1]}, {item}]"


@dataclass(slots=True)
class Entry:
    """An explanation, and the settings that it explains."""

    lines: list[str]
    settings: list[Setting] = field(default_factory=list)


def parse(text: str) -> tuple[list[str], list[Entry]]:
    """The comment that begins the file, and the entries in its order. Raises ValueError for other YAML."""
    description: list[str] = []
    entries: list[Entry] = []
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
                entries.append(Entry(comment))
                comment = []
            elif value is None:
                continue
            elif entries[-1].settings[-1].value is None:
                # The comment above a key explains the keys in it that have none of their own.
                entries[-1].settings.pop()
            entries[-1].settings.append(Setting(path, value))
        else:
            raise ValueError(f"neither a comment nor a key nor an item: {line}")
    return description, entries
