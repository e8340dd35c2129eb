"""Reads the text of configuration files: of regular files up to a bound, so that no pipe or device holds a service."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_text_file(path: Path, most_bytes: int) -> str:
    """The text of a file in UTF-8. Raises ValueError with the problem, which follows the name of the file."""
    try:
        # Without O_NONBLOCK, to open a pipe waits for its writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError("is not a regular file; allowed: a text file")
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    if len(content) > most_bytes:
        raise ValueError(f"is too large; allowed: up to {most_bytes >> 20}MiB")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 text (byte {error.start})") from error
