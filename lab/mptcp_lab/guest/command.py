"""Command line of the guest: `lab/guest/run --kernel NAME -- COMMAND...`."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import platform
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.guest import initramfs, kernels
from mptcp_lab.guest.machine import Machine, run
from mptcp_lab.lab_errors import LabError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MEBIBYTES: Final = 1024
_LEAST_MEBIBYTES: Final = 256
_SECONDS: Final = 600.0


def _options(program: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=program,
        usage="%(prog)s --kernel NAME [--timeout SECONDS] [--memory MIB] [--share DIR] -- COMMAND...",
        description="Boot a stock Debian kernel over this machine's file system and run COMMAND on it as root, in this"
        " directory. What it writes is lost at its end, except below a --share.",
        epilog="exit status: COMMAND's; 124 if it took too long, 125 if it could not be run to its end, 2 wrong command"
        " line, 77 not root, 130 interrupted",
    )
    parser.add_argument("--kernel", required=True, choices=kernels.NAMES)
    parser.add_argument(
        "--timeout", type=_seconds, default=_SECONDS, metavar="SECONDS", help="start included; default: %(default)g"
    )
    parser.add_argument("--memory", type=_memory, default=_MEBIBYTES, metavar="MIB", help="default: %(default)s")
    parser.add_argument(
        "--share", type=_directory, action="append", default=[], metavar="DIR", help="may be written; may be repeated"
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    return parser.parse_args(arguments)


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"{text!r}: allowed: seconds, more than 0")


def _memory(text: str) -> int:
    with contextlib.suppress(ValueError):
        if (value := int(text)) >= _LEAST_MEBIBYTES:
            return value
    raise argparse.ArgumentTypeError(f"{text!r}: allowed: MiB, {_LEAST_MEBIBYTES} or more")


def _directory(text: str) -> Path:
    path = Path(text).resolve()
    if not path.is_dir() or {",", "\n"} & set(str(path)):
        raise argparse.ArgumentTypeError(f"{text!r}: allowed: a directory without commas in its name")
    return path


def main(program: str, arguments: Sequence[str] | None = None) -> int:
    """Run a command in a guest; its exit status. Raises LabError if that could not be done."""
    options = _options(program, arguments)
    if platform.machine() != "x86_64":
        raise LabError(f"this machine is {platform.machine()}; allowed: x86_64, whose programs the guest runs")
    kernel = kernels.get(options.kernel, lambda line: print(f"{program}: {line}", file=sys.stderr, flush=True))
    executables = Path(sys.executable).parent
    end_mark = f"[{secrets.token_hex(16)}]"
    job = initramfs.Job(options.command, Path.cwd(), end_mark, options.share, [executables])
    machine = Machine(kernel.vmlinux, initramfs.build(kernel, job), end_mark.encode(), options.memory, options.share)
    return run(machine, lambda data: _write(1, data), lambda data: _write(2, data), options.timeout)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
