"""Errors that end at the operator: one clear line each and a documented exit status, never a traceback.

The statuses are those of <sysexits.h>, which systemd prints by name:

| status | name | meaning here |
|---|---|---|
| 0 | OK | done |
| 1 | FAILURE | the service refused the request, or the kernel an operation |
| 2 | | wrong command line |
| 65 | DATAERR | a capture is of a kind that cannot be read |
| 66 | NOINPUT | a capture cannot be read |
| 69 | UNAVAILABLE | the service does not answer, or the interface does not exist |
| 71 | OSERR | a kernel feature is missing |
| 75 | TEMPFAIL | another instance is running |
| 77 | NOPERM | a capability or a file permission is missing |
| 78 | CONFIG | the configuration is invalid |
"""

from __future__ import annotations

import os
from typing import Final

EX_FAILURE: Final = 1


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
