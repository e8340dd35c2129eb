"""`mptcp-throttled`: the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from mptcp_throttle import logs, service
from mptcp_throttle.command_line import command_line
from mptcp_throttle.config.load import load_config
from mptcp_throttled.control.overflow_simulation import simulate
from mptcp_throttled.control.trace import read_trace
from mptcp_throttled.lifecycle.cleanup import clean_up_host
from mptcp_throttled.lifecycle.serve import serve


def parser() -> argparse.ArgumentParser:
    """The command line; the manual page is made from it."""
    made = command_line("mptcp-throttled", "Throttle MPTCP subflows to the rates of their access networks.")
    made.add_argument("--cleanup", action="store_true", help="restore everything as it was found, and exit")
    simulation = (
        "print as JSON what an overflow would have done with a recorded trace (see mptcp-throttle(1)), and exit"
    )
    made.add_argument("--simulate", type=Path, metavar="FILE", help=simulation)
    return made


def _main(arguments: Sequence[str] | None) -> None:
    options = parser().parse_args(arguments)
    logs.configure()
    if options.cleanup:
        clean_up_host(options.config)
    elif options.simulate is not None:
        config = load_config(options.config)
        trace = read_trace(options.simulate, [network.name for network in config.networks])
        sys.stdout.write(json.dumps(simulate(config, trace)) + "\n")
    else:
        serve(options.config)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service; the exit status is one of those in `mptcp_throttle.errors`."""
    return service.run(lambda: _main(arguments))


if __name__ == "__main__":
    sys.exit(main())
