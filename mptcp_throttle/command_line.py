"""What the command lines of all installed programs have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from mptcp_throttle.config.load import DEFAULT_PATH
from mptcp_throttle.errors import EXIT_STATUS_HELP
from mptcp_throttle.units import DURATION_SYNTAX, parse_duration

_T = TypeVar("_T")


@lru_cache
def version() -> str:
    """That of the installed package: all our programs are installed together."""
    return metadata.version("mptcp-throttle")


def add_version(parser: argparse.ArgumentParser) -> None:
    """Give a program the option `--version`."""
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")


class _ShowVersion(argparse.Action):
    """argparse's own action `version` needs the text for every command line, and to find it takes milliseconds."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        sys.stdout.write(f"{parser.prog} {version()}\n")
        parser.exit()


def command_line(program: str, description: str) -> argparse.ArgumentParser:
    """A parser with `--version` and `--config`, and the exit statuses in its help."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog=EXIT_STATUS_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_version(parser)
    parser.add_argument(
        "--config", type=Path, default=DEFAULT_PATH, metavar="FILE", help="configuration file; default: %(default)s"
    )
    return parser


def argument(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """For argparse: a ValueError becomes its error message, with the text in front."""

    def convert(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text}: {error}") from error

    return convert


def duration(text: str) -> float:
    """A duration in seconds, not zero. Raises ValueError."""
    seconds = parse_duration(text)
    if not seconds:
        raise ValueError(f"is zero; allowed: {DURATION_SYNTAX}")
    return seconds
