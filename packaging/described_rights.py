"""Users, directories and rights in Markdown, from the units and from what systemd makes at boot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from markdown_text import code, table

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
    return {
        "users": table(("kind", "name", "is"), _users()),
        "directories": table(("path", "mode", "owner", "group"), _directories()),
        "units": table(("", *map(code, _UNITS)), _settings()),
    }


def _lines(folder: str) -> list[str]:
    """Those of the only file in a folder."""
    (file,) = Path(folder).iterdir()
    return file.read_text(encoding="utf-8").splitlines()


def _users() -> Iterator[tuple[str, str, str]]:
    """Each with the comment above it, or its own."""
    comment = ""
    for line in _lines("systemd/sysusers.d"):
        if line.startswith("# "):
            comment = line.removeprefix("# ")
            continue
        kind, name, *_ = line.split()
        own = re.search(r'"(.*)"', line)
        yield _KINDS[kind], code(name), own[1] if own else comment


def _directories() -> Iterator[tuple[str, str, str, str]]:
    for line in _lines("systemd/tmpfiles.d"):
        if not line.startswith("#"):
            _, path, mode, owner, group, _ = line.split()
            yield code(path), mode, owner, group


def _settings() -> Iterator[list[str]]:
    units = [_unit(name) for name in _UNITS]
    for setting in _SETTINGS:
        yield [code(f"{setting}="), *(unit.get(setting) or "-" for unit in units)]


def _unit(name: str) -> dict[str, str]:
    text = Path(f"systemd/{name}.service").read_text(encoding="utf-8")
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
