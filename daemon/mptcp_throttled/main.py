"""`mptcp-throttled`: the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mptcp_throttle import logs, service
from mptcp_throttle.command_line import command_line
from mptcp_throttled.lifecycle.cleanup import clean_up_host
from mptcp_throttled.lifecycle.serve import serve


def parser() -> argparse.ArgumentParser:
    """The command line; the manual page is made from it."""
    made = command_line("mptcp-throttled", "Throttle MPTCP subflows to the rates of their access networks.")
    made.add_argument("--cleanup", action="store_true", help="restore everything as it was found, and exit")
    return made


def _main(arguments: Sequence[str] | None) -> None:
    options = parser().parse_args(arguments)
    logs.configure()
    if options.cleanup:
        clean_up_host(options.config)
    else:
        serve(options.config)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service; the exit status is one of those in `mptcp_throttle.errors`."""
    return service.run(lambda: _main(arguments))


if __name__ == "__main__":
    sys.exit(main())
