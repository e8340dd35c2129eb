"""Identifies the present boot of this host: socket cookies are unique during one boot only."""

from __future__ import annotations

import uuid
from contextlib import suppress
from pathlib import Path


def boot_identifier(run_directory: Path) -> str:
    """A random text, the same for every instance until the next boot, which empties `run_directory`.

    The kernel's identifier (/proc/sys/kernel/random/boot_id) is hidden from the service: systemd.exec(5),
    ProcSubset=pid. If the directory cannot be written, every instance has another text.
    """
    file, new = run_directory / "boot", str(uuid.uuid4())
    with suppress(OSError):
        if known := file.read_text(encoding="ascii", errors="replace"):
            return known
    with suppress(OSError):
        file.write_text(new, encoding="ascii")
    return new
