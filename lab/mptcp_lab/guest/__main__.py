"""`python -m mptcp_lab.guest`: ends with the command's exit status, or with one line and a status that says why not."""

from __future__ import annotations

import sys
from typing import Final

from mptcp_lab.guest import EX_NO_STATUS
from mptcp_lab.interrupts import Interrupted, raise_on_signals
from mptcp_throttle.errors import EX_BROKEN_PIPE, EX_FAILURE, UserError

_PROGRAM: Final = "guest"


def run() -> int:
    """Run the guest; the exit status is described in `--help`."""
    raise_on_signals()
    try:
        # Not at the top: Ctrl-C during these imports would show a traceback.
        from mptcp_lab.guest.command import main

        return main(_PROGRAM)
    except Interrupted as signal:
        sys.stderr.write(f"{_PROGRAM}: interrupted by {signal}\n")
        return 128 + signal.number
    except BrokenPipeError:
        return EX_BROKEN_PIPE
    except UserError as error:
        sys.stderr.write(f"{_PROGRAM}: {error}\n")
        # Any other status could be the command's.
        return EX_NO_STATUS if error.status == EX_FAILURE else error.status


if __name__ == "__main__":
    sys.exit(run())
