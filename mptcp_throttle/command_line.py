"""What the command lines of all installed programs have in common."""

from __future__ import annotations

import argparse
from pathlib import Path

from mptcp_throttle.config.load import DEFAULT_PATH
from mptcp_throttle.errors import EXIT_STATUS_HELP
from mptcp_throttle.version import add_version


def command_line(program: str, description: str) -> argparse.ArgumentParser:
    """A parser with `--version` and `--config`, and the exit statuses in its help."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog=EXIT_STATUS_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_version(parser)
    parser.add_argument("--config", type=Path, default=DEFAULT_PATH, metavar="FILE", help="default: %(default)s")
    return parser
