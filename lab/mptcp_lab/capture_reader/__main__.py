"""`lab/read-capture`, or `python -m mptcp_lab.capture_reader`: the command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mptcp_lab.capture_reader.capture_reading import print_capture
from mptcp_throttle import service
from mptcp_throttle.model import Trust
from mptcp_throttle.ports import Ports

if TYPE_CHECKING:
    from collections.abc import Sequence


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="read-capture",
        description="Show the MPTCP connections of a capture file as the sniffer would have published them.",
        epilog="exit status: 65 if the file is damaged or truncated, or nothing in it is decoded; 66 if unreadable; "
        "69 if it is compressed by zstd, which is not installed",
    )
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="pcap or pcapng, also compressed by gzip, bzip2, xz or zstd; `-` is standard input",
    )
    parser.add_argument(
        "--ports",
        type=_ports,
        default=Ports.of([8080]),
        metavar="PORT,...",
        help="proxy ports and ranges, such as 8080,20000-29999; default: 8080",
    )
    parser.add_argument("--trust", type=Trust, choices=list(Trust), default=Trust.HANDSHAKE, help="as `sniffer.trust`")
    parser.add_argument(
        "--json", action="store_true", help="print connections, events and counters instead of one line per event"
    )
    return parser


def _ports(text: str) -> Ports:
    return Ports.parse(text.split(","))


def main(arguments: Sequence[str] | None = None) -> int:
    """Read a capture file and print what is in it; returns the exit status."""
    options = _parser().parse_args(arguments)
    return service.run(lambda: print_capture(options.file, options.ports, options.trust, as_json=options.json))


if __name__ == "__main__":
    sys.exit(main())
