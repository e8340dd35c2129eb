"""How every program of the lab ends: with one line and an exit status, whatever happens."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mptcp_lab.interrupts import Interrupted, raise_on_signals
from mptcp_throttle.errors import EX_BROKEN_PIPE, EX_FAILURE, UserError

if TYPE_CHECKING:
    from collections.abc import Callable


def run_program(name: str, work: Callable[[], int], failure: int = EX_FAILURE) -> int:
    """The exit status of `work`, or of what ended it; `failure` stands for a UserError that has no status of its own.

    `work` imports what it needs itself: imports take a moment, in which Ctrl-C would show a traceback.
    """
    raise_on_signals()
    try:
        return work()
    except Interrupted as signal:
        sys.stderr.write(f"{name}: interrupted by {signal}; everything is cleaned up\n")
        return 128 + signal.number
    except BrokenPipeError:
        return EX_BROKEN_PIPE
    except UserError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"{name}: {line}\n")
        return failure if error.status == EX_FAILURE else error.status
