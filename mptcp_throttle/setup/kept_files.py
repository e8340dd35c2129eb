"""Configuration files: what the package installs, and writing files without losing what the operator has edited."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from difflib import SequenceMatcher, unified_diff
from enum import StrEnum
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from mptcp_throttle.durable_file import write_atomically
from mptcp_throttle.errors import UserError
from mptcp_throttle.rpc import Json

_SHIPPED: Final = Path(__file__).parent / "shipped"
MAIN_FILE: Final = "mptcp-throttle.yaml"
NETWORK_FILES: Final = ("lte.yaml", "wifi.yaml")
SQUID_SERVICE: Final = "squid-service.conf"
SQUID_UPLOADS: Final = "squid-uploads.conf"


def shipped(name: str) -> str:
    """The text of such a file as the package installs it: a file that differs from it has been edited."""
    return (_SHIPPED / name).read_text(encoding="utf-8")


@contextmanager
def staged(texts: Mapping[str, str]) -> Iterator[Path]:
    """A temporary directory with files of these names and texts, for the loader. Raises UserError if that fails."""
    with ExitStack() as stack:
        try:
            directory = Path(stack.enter_context(TemporaryDirectory()))
            for name, text in texts.items():
                (directory / name).write_text(text, encoding="utf-8")
        except OSError as error:
            # Without a usable directory, tempfile gives as the reason the directories that it has tried.
            raise UserError(f"setup: temporary files cannot be written: {error.strerror}", os.EX_IOERR) from error
        yield directory


def normalized(text: str) -> str:
    """The text with LF line ends, and without a byte order mark: neither is a difference between files."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def with_line_ends_of(before: str, text: str) -> str:
    """A text with LF, changed from `before`: its lines end as they did before, new lines as most lines did.

    A byte order mark stays.
    """
    mark = "\ufeff" if before.startswith("\ufeff") else ""
    *lines, rest = before.removeprefix(mark).split("\n")
    new = text.split("\n")
    most = "\r" if 2 * before.count("\r\n") > before.count("\n") else ""
    ends = [most] * len(new)
    matcher = SequenceMatcher(None, [*(line.removesuffix("\r") for line in lines), rest], new, autojunk=False)
    for old_from, new_from, length in matcher.get_matching_blocks():
        for at, line in enumerate(lines[old_from : old_from + length], new_from):
            ends[at] = "\r" if line.endswith("\r") else ""
    ends[-1] = ""  # no line end follows
    return mark + "\n".join(line + end for line, end in zip(new, ends, strict=True))


class Outcome(StrEnum):
    """What to do with a file: nothing, as it has that text already; write it; back it up and write it; or keep it."""

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
    """What to do with a file that has `present` and shall have `text`. The text `unedited` is not the operator's."""
    if present is None:
        return Outcome.WRITE
    if normalized(present) == normalized(text):
        return Outcome.UNCHANGED
    if normalized(present) == unedited:
        return Outcome.WRITE
    return Outcome.BACK_UP if force else Outcome.KEEP


def difference(name: str, present: str | None, proposed: str) -> str:
    """How a file would change, as a unified diff; empty if at most its line ends would."""
    before = "/dev/null" if present is None else name
    old, new = (normalized(text).splitlines(keepends=True) for text in (present or "", proposed))
    return "".join(unified_diff(old, new, before, name, n=1))


def write_files(files: Sequence[NewFile], *, force: bool, dry_run: bool) -> list[Json]:
    """Write files, unless it is a `dry_run`; what became of each.

    If a file cannot be written, all files are put back; UserError names any file for which that failed, too.
    """
    texts = {file.path: read_present(file.path) for file in files}
    written: list[_Written] = []
    results = []
    try:
        for path, text, unedited in files:
            present = texts[path]
            outcome = judge(present, text, unedited, force=force)
            backup = None if dry_run else write(path, text, outcome)
            if not dry_run and outcome in {Outcome.WRITE, Outcome.BACK_UP}:
                written.append(_Written(path, present, backup))
            results.append(
                {
                    "path": str(path),
                    "outcome": str(outcome),
                    "difference": difference(str(path), unedited if present is None else present, text),
                    "backup": None if backup is None else str(backup),
                }
            )
    except BaseException as error:
        left = _put_back(written)
        if left and isinstance(error, UserError):
            names = ", ".join(map(str, left))
            raise UserError(f"{error}; written, and not as before: {names}", error.status) from error
        raise
    return results


def write(path: Path, text: str, outcome: Outcome) -> Path | None:
    """Write a file; the path of its backup, if any. A crash leaves the old or the new text. Raises UserError."""
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


class _Written(NamedTuple):
    """A file that was written: its text before, None if there was none, and the backup that was made of it."""

    path: Path
    before: str | None
    backup: Path | None


def _put_back(files: Iterable[_Written]) -> list[Path]:
    """Make files as they were before; the files for which that failed."""
    failed = []
    for file in files:
        path = file.path.resolve()
        try:
            if file.backup is not None:
                file.backup.replace(path)
            elif file.before is None:
                path.unlink(missing_ok=True)
            else:
                write(path, file.before, Outcome.WRITE)
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
    """Make it and its missing parents, readable for all users whatever the umask."""
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
