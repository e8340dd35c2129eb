"""How systemd starts a service, from its unit file and the drop-ins of it (systemd.unit(5))."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

# The first directory that has a file counts.
_DIRECTORIES: Final = (
    *("etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system"),
    *("usr/lib/systemd/system", "lib/systemd/system"),
)


def read_unit_files(root: Path, name: str, without: Path | None = None) -> list[str]:
    """The texts of the unit `name` below the directory `root`: its file, and its drop-ins in their order.

    An instance (`a@b.service`) has those of its template, too. Empty if there is no such unit. The drop-in `without` is
    left out. Raises OSError.
    """
    file = _unit_file(root, name)
    if file is None:
        return []
    drop_ins: dict[str, Path] = {}
    for one in _paths(root, name, ".d"):
        for drop_in in sorted(one.glob("*.conf")):
            drop_ins.setdefault(drop_in.name, drop_in)
    paths = [file, *(path for _, path in sorted(drop_ins.items()) if path != without)]
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths]


def with_files(root: Path, units: Iterable[str]) -> list[str]:
    """Those of the units that have a unit file below the directory `root`."""
    return [unit for unit in units if _unit_file(root, unit) is not None]


def _unit_file(root: Path, name: str) -> Path | None:
    return next((path for path in _paths(root, name) if path.is_file()), None)


def _paths(root: Path, name: str, suffix: str = "") -> Iterator[Path]:
    """Where files of a unit may be: for an instance its own places, then those of its template."""
    for one in dict.fromkeys((name, re.sub(r"@.*(?=\.)", "@", name))):
        yield from (root / directory / f"{one}{suffix}" for directory in _DIRECTORIES)


def start_commands(texts: Iterable[str]) -> tuple[str, ...]:
    """The values of `ExecStart=`, of which an empty one removes those before it."""
    commands: list[str] = []
    for text in texts:
        for section, line in _settings(text):
            key, _, value = line.partition("=")
            if section == "Service" and key.strip() == "ExecStart":
                commands = [*commands, value.strip()] if value.strip() else []
    return tuple(commands)


def _settings(text: str) -> Iterator[tuple[str, str]]:
    """Each setting with its section; of several lines, joined by a space (systemd.syntax(7))."""
    section = ""
    lines = [line for line in text.splitlines() if not re.match(r"\s*[#;]", line)]
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        found = re.fullmatch(r"\s*\[(.*)\]\s*", line)
        if found is not None:
            section = found[1]
        elif "=" in line:
            yield section, line.strip()
