"""Errors for the operator: one line each and a documented exit status, no traceback."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Sequence
from typing import Final

EX_FAILURE: Final = 1
EX_COMMAND_LINE: Final = 2  # that of argparse
EX_INTERRUPTED: Final = 128 + signal.SIGINT
EX_BROKEN_PIPE: Final = 128 + signal.SIGPIPE

EXIT_STATUSES: Final = {
    os.EX_OK: "success",
    EX_FAILURE: (
        "the service or the kernel refused the request, `setup` has kept a file that was edited, "
        "or `--simulate` has a bad trace, or no network with `overflow`"
    ),
    EX_COMMAND_LINE: "wrong command line, or `setup` needs --interface or --port",
    os.EX_UNAVAILABLE: (
        "the service does not answer, the interface cannot be captured, or `setup` finds no listener or no client"
    ),
    os.EX_OSERR: "a kernel feature is missing",
    os.EX_IOERR: "the output cannot be written",
    os.EX_TEMPFAIL: "another instance is running: with this configuration, or in this network namespace",
    os.EX_NOPERM: "a capability or a file permission is missing",
    os.EX_CONFIG: "the configuration is invalid",
    EX_INTERRUPTED: "interrupted by Ctrl-C",
    EX_BROKEN_PIPE: "the reader of the output has closed it",
}
"""The exit statuses of all our programs: <sysexits.h>, whose names systemd prints, and 128 + signal as in a shell."""

EXIT_STATUS_HELP: Final = "exit status:\n" + "\n".join(
    f"  {status:3}  {text}" for status, text in EXIT_STATUSES.items()
)
"""The epilog of every `--help`; for argparse.RawDescriptionHelpFormatter."""


class UserError(Exception):
    """An error message of one line for the operator, and the exit status of the program."""

    def __init__(self, message: str, status: int = EX_FAILURE) -> None:
        super().__init__(message)
        self.status = status


class NotYetAppliedError(UserError):
    """A change is saved, and the daemon applies it later all the same."""


class ExitStatus(UserError):
    """An exit status whose meaning the program has printed already."""

    def __init__(self, status: int) -> None:
        super().__init__("", status)


class ConfigError(UserError):
    """An invalid configuration: one line per problem, with file, line, key, value and what is allowed."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems), os.EX_CONFIG)
        self.problems = problems


def listed(items: Iterable[object], most: int = 5) -> str:
    """The first items, and how many more there are."""
    names = [str(item) for item in items]
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def first_of(problems: Sequence[str]) -> str:
    """The first of one or more problems, and how many more there are, on one line."""
    rest = len(problems) - 1
    return problems[0] + (f" and {rest} more" if rest else "")


def shown(value: object) -> str:
    """A value as error messages quote it: on one line, at most 60 characters; null, true and false as in JSON."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
