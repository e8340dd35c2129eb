"""Writes configuration files: what others have edited is kept, or backed up first."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from difflib import unified_diff
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import NamedTuple

from mptcp_throttle.durable_file import write_atomically
from mptcp_throttle.errors import UserError
from mptcp_throttle.setup.line_ends import without_carriage_returns


class Outcome(StrEnum):
    """What a file needs: nothing, as it has that text already; writing, or writing after a backup; or it is kept."""

    UNCHANGED = "unchanged"
    WRITE = "write"
    BACK_UP = "back up"
    KEEP = "keep"


class NewFile(NamedTuple):
    """A file to write. `unedited` is its text as the package installs it; a change is shown against that if there is no
    file."""

    path: Path
    text: str
    unedited: str | None = None


def read_present(path: Path) -> str | None:
    """The text of a file, with the line ends that it has; None if there is none. Raises UserError."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"{path}: cannot be read: {reason}", os.EX_NOPERM) from error


def judge(present: str | None, text: str, unedited: str | None, *, force: bool) -> Outcome:
    """What to do with a file that has `present` and shall have `text`; with `unedited`, nobody has edited it.

    Line ends are no difference.
    """
    if present is None:
        return Outcome.WRITE
    if without_carriage_returns(present) == without_carriage_returns(text):
        return Outcome.UNCHANGED
    if without_carriage_returns(present) == unedited:
        return Outcome.WRITE
    return Outcome.BACK_UP if force else Outcome.KEEP


def difference(name: str, present: str | None, proposed: str) -> str:
    """How a file would change, as a unified diff; empty if at most its line ends would."""
    before = "/dev/null" if present is None else name
    old, new = (without_carriage_returns(text).splitlines(keepends=True) for text in (present or "", proposed))
    return "".join(unified_diff(old, new, before, name, n=1))


def write(path: Path, text: str, outcome: Outcome) -> Path | None:
    """Do it; the path of the backup, if there is one. A crash leaves the old or the new text. Raises UserError."""
    if outcome in {Outcome.UNCHANGED, Outcome.KEEP}:
        return None
    path = path.resolve()
    backup = None
    try:
        _make_directory(path.parent)
        backup = _back_up(path) if outcome is Outcome.BACK_UP else None
        write_atomically(path, text, keep_owner=True)
    except OSError as error:
        if backup is not None:
            with suppress(OSError):
                backup.unlink()
        raise UserError(f"{path}: cannot be written: {error.strerror}", os.EX_NOPERM) from error
    return backup


class Before(NamedTuple):
    """A file before it was written: its text, None if there was none, and the backup that was made of it."""

    path: Path
    text: str | None
    backup: Path | None


def put_back(files: Iterable[Before]) -> list[Path]:
    """Make files as they were before; those for which that failed."""
    failed = []
    for file in files:
        path = file.path.resolve()
        try:
            if file.backup is not None:
                file.backup.replace(path)
            elif file.text is None:
                path.unlink(missing_ok=True)
            elif read_present(path) != file.text:
                write(path, file.text, Outcome.WRITE)
        except (OSError, UserError):
            failed.append(path)
    return failed


def set_aside(path: Path) -> Path:
    """Rename a file to the name of its backup. Raises UserError."""
    try:
        backup = _back_up(path)
        path.unlink()
    except OSError as error:
        raise UserError(f"{path}: cannot be renamed: {error.strerror}", os.EX_NOPERM) from error
    return backup


def _make_directory(directory: Path) -> None:
    """Make it, and those above, so that everybody can read what is there, whatever the umask."""
    if not directory.exists():
        _make_directory(directory.parent)
        directory.mkdir()
        directory.chmod(0o755)


def _back_up(path: Path) -> Path:
    """Give the file a second name, which no reader of the directory takes for a configuration file."""
    for number in count(1):
        backup = path.with_name(f"{path.name}.before-setup{'' if number == 1 else f'-{number}'}")
        try:
            backup.hardlink_to(path)
        except FileExistsError:
            continue
        return backup
    raise AssertionError
