"""Users, directories and rights in Markdown, from the units and from what systemd makes at boot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from markdown import code, table

_UNITS: Final = ("mptcp-sniffer", "mptcp-throttled", "mptcp-throttle-web")
_SETTINGS: Final = (
    "User",
    "Group",
    "SupplementaryGroups",
    "AmbientCapabilities",
    "MemoryMax",
    "WatchdogSec",
)
_KINDS: Final = {"u": "user", "g": "group"}


def rights() -> dict[str, list[str]]:
    """Users and groups; the directories for sockets; what each unit may do."""
    directories = table(("path", "mode", "owner", "group"), map(_directory, _lines("systemd/tmpfiles.d")))
    return {
        "users": table(("kind", "name", "is"), _users()),
        "directories": directories,
        "units": table(("", *map(code, _UNITS)), _settings()),
    }


def _lines(folder: str) -> list[str]:
    (file,) = Path(folder).iterdir()
    return [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


def _users() -> Iterator[tuple[str, str, str]]:
    """Each with the comment above it, or its own."""
    (file,) = Path("systemd/sysusers.d").iterdir()
    comment = ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            comment = line.removeprefix("# ")
            continue
        kind, name, *_ = line.split()
        own = re.search(r'"(.*)"', line)
        yield _KINDS[kind], code(name), own[1] if own else comment


def _directory(line: str) -> tuple[str, str, str, str]:
    _, path, mode, owner, group, _ = line.split()
    return code(path), mode, owner, group


def _settings() -> Iterator[list[str]]:
    units = [_unit(name) for name in _UNITS]
    for setting in _SETTINGS:
        yield [code(f"{setting}="), *(unit.get(setting) or "-" for unit in units)]


def _unit(name: str) -> dict[str, str]:
    text = Path(f"systemd/{name}.service").read_text(encoding="utf-8")
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
