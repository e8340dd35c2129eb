"""Compiles the BPF programs of the tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

_SYSTEM_HEADERS: Final = Path("/usr/include") / f"{os.uname().machine}-linux-gnu"


def compiled(source: Path, directory: Path, *options: str) -> Path:
    """The object file that clang makes of `source`, in `directory`."""
    made = directory / source.with_suffix(".o").name
    command = ["clang", "-O2", "-g", "-target", "bpf", *options, "-idirafter", str(_SYSTEM_HEADERS)]
    subprocess.run([*command, "-c", source, "-o", made], check=True)
    return made
