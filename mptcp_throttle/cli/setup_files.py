"""Files that `setup` and `setup networks` write: what becomes of each, and how that is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rich.console import Console

from mptcp_throttle.errors import UserError
from mptcp_throttle.rpc import Json
from mptcp_throttle.setup.kept_files import Before, NewFile, Outcome, difference, judge, put_back, read_present, write

_OUTCOMES: Final = {
    (Outcome.UNCHANGED, False): "needs no change",
    (Outcome.UNCHANGED, True): "needs no change",
    (Outcome.WRITE, False): "written",
    (Outcome.WRITE, True): "would be written",
    (Outcome.BACK_UP, False): "written",
    (Outcome.BACK_UP, True): "would be written, after a backup",
    (Outcome.KEEP, False): "has been edited, and was kept; proposed:",
    (Outcome.KEEP, True): "has been edited, and would be kept; proposed:",
}


class Result(NamedTuple):
    """What was done, and why that is not all, if so."""

    data: Json
    refusal: UserError | None


def write_files(files: Sequence[NewFile], *, force: bool, dry_run: bool) -> list[Json]:
    """Write files, unless it is a `dry_run`; what became of each.

    If one cannot be written, UserError is raised, and all are as before; it names those that are not.
    """
    texts = {file.path: read_present(file.path) for file in files}
    written: list[Before] = []
    results = []
    try:
        for path, text, unedited in files:
            present = texts[path]
            outcome = judge(present, text, unedited, force=force)
            backup = None if dry_run else write(path, text, outcome)
            if not dry_run and outcome in {Outcome.WRITE, Outcome.BACK_UP}:
                written.append(Before(path, present, backup))
            results.append(
                {
                    "path": str(path),
                    "outcome": str(outcome),
                    "difference": difference(str(path), unedited if present is None else present, text),
                    "backup": None if backup is None else str(backup),
                }
            )
    except BaseException as error:
        left = put_back(written)
        if left and isinstance(error, UserError):
            names = ", ".join(map(str, left))
            raise UserError(f"{error}; written, and not as before: {names}", error.status) from error
        raise
    return results


def refusal(written: Sequence[Json], *, dry_run: bool) -> UserError | None:
    """Why not all files were written, if so."""
    kept = [one["path"] for one in written if one["outcome"] == Outcome.KEEP]
    if not kept or dry_run:
        return None
    return UserError(
        f"setup: kept, since they have been edited: {', '.join(kept)}; allowed: --force, which backs them up"
    )


def show_files(console: Console, files: Sequence[Json], *, dry_run: bool) -> None:
    """What became of each file, and how it changes."""
    for one in files:
        done = _OUTCOMES[Outcome(one["outcome"]), dry_run]
        backup = f"; the file as it was is {one['backup']}" if one["backup"] else ""
        console.print(f"{one['path']}: {done}{backup}", style="bold", markup=False)
        if one["difference"]:
            console.print(one["difference"], markup=False)
