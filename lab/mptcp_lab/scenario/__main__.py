"""`mptcp-lab`, or `python -m mptcp_lab.scenario`: ends with one line and an exit status, whatever happens."""

from __future__ import annotations

import sys
from typing import Final

from mptcp_lab.interrupts import Interrupted, raise_on_signals
from mptcp_throttle.errors import EX_BROKEN_PIPE, UserError

_PROGRAM: Final = "mptcp-lab"


def main() -> int:
    """Run the command line; the exit status is described in `--help`."""
    raise_on_signals()
    try:
        # Not at the top: these imports take a moment, in which Ctrl-C would show a traceback.
        from mptcp_lab.scenario.command import run

        return run(_PROGRAM)
    except Interrupted as signal:
        sys.stderr.write(f"{_PROGRAM}: interrupted by {signal}; everything is cleaned up\n")
        return 128 + signal.number
    except BrokenPipeError:
        return EX_BROKEN_PIPE
    except UserError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"{_PROGRAM}: {line}\n")
        return error.status


if __name__ == "__main__":
    sys.exit(main())
