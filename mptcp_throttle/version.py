"""The version of all our programs: they are installed together."""

from __future__ import annotations

import argparse
import sys
from functools import lru_cache
from importlib import metadata


@lru_cache
def version() -> str:
    """That of the installed package."""
    return metadata.version("mptcp-throttle")


def add_version(parser: argparse.ArgumentParser) -> None:
    """Give a program the option `--version`."""
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")


class _ShowVersion(argparse.Action):
    """argparse's own action `version` needs the text for every command line, and to find it takes milliseconds."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        sys.stdout.write(f"{parser.prog} {version()}\n")
        parser.exit()
