"""Programs of the host that `doctor`, `setup` and `mptcp-throttle-namespace` ask: they only read."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Final

# `su` without `-` leaves out the directories where programs for root are.
_PATH: Final = ":/usr/sbin:/sbin"
_SECONDS: Final = 10.0


class ProgramFailed(Exception):
    """The program has failed; the message says which, and why, in one line."""


def output_of(name: str, *arguments: str) -> str | None:
    """What a program prints; None if it is not installed. Raises ProgramFailed."""
    path = shutil.which(name, path=os.environ.get("PATH", os.defpath) + _PATH)
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, encoding="utf-8", errors="replace", check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise ProgramFailed(f"{name}: no answer in {_SECONDS:g} s") from error
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise ProgramFailed(reason if reason.startswith(name) else f"{name}: {reason}")
    return done.stdout
