"""Command line of the guest: `lab/guest/run --kernel NAME -- COMMAND...`."""

from __future__ import annotations

import argparse
import math
import os
import platform
import secrets
import sys
from pathlib import Path
from typing import Final

from mptcp_lab.argument_types import checked
from mptcp_lab.guest import initramfs, kernels
from mptcp_lab.guest.machine import Machine, run
from mptcp_lab.lab_errors import LabError

_MEBIBYTES: Final = 1024
_LEAST_MEBIBYTES: Final = 256
_SECONDS: Final = 600.0

_DURATION: Final = checked(float, "seconds, more than 0", lambda seconds: 0 < seconds < math.inf)
_SIZE: Final = checked(int, f"MiB, {_LEAST_MEBIBYTES} or more", lambda size: size >= _LEAST_MEBIBYTES)
_DIRECTORY: Final = checked(
    lambda text: Path(text).resolve(),
    "a directory without commas in its name",
    lambda path: path.is_dir() and not {",", "\n"} & set(str(path)),
)


def _options(program: str) -> argparse.Namespace:
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
        "--timeout", type=_DURATION, default=_SECONDS, metavar="SECONDS", help="start included; default: %(default)g"
    )
    parser.add_argument("--memory", type=_SIZE, default=_MEBIBYTES, metavar="MIB", help="default: %(default)s")
    parser.add_argument(
        "--share", type=_DIRECTORY, action="append", default=[], metavar="DIR", help="may be written; may be repeated"
    )
    parser.add_argument(
        "--tap",
        action="append",
        default=[],
        metavar="NAME",
        help="an existing tap device, the guest's next network interface (virtio_net); may be repeated",
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    return parser.parse_args()


def main(program: str) -> int:
    """Run a command in a guest; its exit status. Raises LabError if that could not be done."""
    options = _options(program)
    if platform.machine() != "x86_64":
        raise LabError(f"this machine is {platform.machine()}; allowed: x86_64, whose programs the guest runs")
    kernel = kernels.get(options.kernel, lambda line: print(f"{program}: {line}", file=sys.stderr, flush=True))
    executables = Path(sys.executable).parent
    end_mark = f"[{secrets.token_hex(16)}]"
    job = initramfs.Job(options.command, Path.cwd(), end_mark, options.share, [executables])
    archive = initramfs.build(kernel, job)
    machine = Machine(kernel.vmlinux, archive, end_mark.encode(), options.memory, options.share, options.tap)
    return run(machine, lambda data: _write(1, data), lambda data: _write(2, data), options.timeout)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
