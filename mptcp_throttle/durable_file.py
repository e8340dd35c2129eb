"""Files that a crash must not leave half-written."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_UNFINISHED: Final = ".new"


def write_atomically(path: Path, text: str, *, keep_owner: bool = False, mode: int = 0o644) -> None:
    """Replace the file so that a crash at any moment leaves the old or the new text. Raises OSError.

    With `keep_owner`, owner, group and mode are those of the file that it replaces, if there is one.
    """
    temporary = path.with_suffix(_UNFINISHED)
    temporary.unlink(missing_ok=True)
    # O_EXCL does not follow a symbolic link that another user has put there.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, mode)
            if keep_owner and path.exists():
                status = path.stat()
                os.fchown(descriptor, status.st_uid, status.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)  # on a full disk it would need space
        raise
    temporary.replace(path)
    synchronise(path.parent)


def remove_unfinished(directory: Path) -> None:
    """Remove what a process has left that was killed while it wrote; no other may write there now. Raises OSError."""
    for file in directory.glob(f"*{_UNFINISHED}"):
        file.unlink(missing_ok=True)


def synchronise(directory: Path) -> None:
    """Let the names in a directory survive a crash of the host. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
