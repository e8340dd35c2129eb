"""Errors that end at the operator: one clear line each and a documented exit status, never a traceback."""

from __future__ import annotations

import os
import signal
from typing import Final

EX_FAILURE: Final = 1
EX_INTERRUPTED: Final = 128 + signal.SIGINT
EX_BROKEN_PIPE: Final = 128 + signal.SIGPIPE

EXIT_STATUSES: Final = {
    os.EX_OK: "done",
    EX_FAILURE: "the service refused the request, or the kernel an operation",
    2: "wrong command line",
    os.EX_DATAERR: "a capture (`mptcp-sniffer --read`) is of a kind that cannot be read",
    os.EX_NOINPUT: "a capture cannot be read",
    os.EX_UNAVAILABLE: "the service does not answer, or the interface does not exist",
    os.EX_OSERR: "a kernel feature is missing",
    os.EX_IOERR: "the output cannot be written",
    os.EX_TEMPFAIL: "another instance is running",
    os.EX_NOPERM: "a capability or a file permission is missing",
    os.EX_CONFIG: "the configuration is invalid",
    EX_INTERRUPTED: "interrupted by Ctrl-C",
    EX_BROKEN_PIPE: "the reader of the output has gone",
}
"""Of all our programs: those of <sysexits.h>, which systemd prints by name, and the shell's for a signal."""

EXIT_STATUS_HELP: Final = "exit status:\n" + "\n".join(
    f"  {status:3}  {text}" for status, text in EXIT_STATUSES.items()
)
"""The epilog of every `--help`; for argparse.RawDescriptionHelpFormatter."""


class UserError(Exception):
    """What went wrong, in one line for the operator, and the exit status it ends a program with."""

    def __init__(self, message: str, status: int = EX_FAILURE) -> None:
        super().__init__(message)
        self.status = status


class ConfigError(UserError):
    """A configuration that cannot be used: a line per problem, naming file, key, value and what is allowed."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems), os.EX_CONFIG)
        self.problems = problems


def shown(value: object) -> str:
    """A value as an error message quotes it: in one line, and not all of a long one."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
