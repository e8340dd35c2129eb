"""Which programs the package installs: all that pyproject.toml names, except the programs of the lab."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Program(NamedTuple):
    """A program, and the module whose `main` it calls. `parser()` of that module is its command line."""

    name: str
    module: str
    is_service: bool

    @property
    def section(self) -> int:
        """The section of its manual page."""
        return 8 if self.is_service else 1

    @property
    def directory(self) -> str:
        """Where it is found through PATH: a service is for root."""
        return "usr/sbin" if self.is_service else "usr/bin"


def packaged_programs(repository: Path) -> list[Program]:
    """A program with a systemd unit is a service."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [
        Program(name, entry.partition(":")[0], (repository / f"systemd/{name}.service").exists())
        for name, entry in project["scripts"].items()
        if not entry.startswith("mptcp_lab.")
    ]
