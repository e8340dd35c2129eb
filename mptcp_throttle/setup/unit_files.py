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

    Empty if there is no such unit. The drop-in `without` is left out. Raises OSError.
    """
    directories = [root / directory for directory in _DIRECTORIES]
    file = next((one / name for one in directories if (one / name).is_file()), None)
    if file is None:
        return []
    drop_ins: dict[str, Path] = {}
    for directory in directories:
        for one in sorted((directory / f"{name}.d").glob("*.conf")):
            drop_ins.setdefault(one.name, one)
    paths = [file, *(path for _, path in sorted(drop_ins.items()) if path != without)]
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths]


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
