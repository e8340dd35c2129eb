"""Command line of the demo, and the demo from the first situation to the last picture."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from mptcp_lab.demo.display import Display
from mptcp_lab.demo.results import Run, as_json, environment
from mptcp_lab.demo.situations import SITUATIONS, Situation
from mptcp_lab.demo.stage import perform
from mptcp_lab.demo.table import expectations_table, rates_table
from mptcp_throttle.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH: Final = 120


def _options(program: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Download through a real MPTCP proxy in network namespaces, and measure both access networks:"
        " Ethernet with 10 Mb/s and Wi-Fi with 56 Mb/s.",
        epilog="exit status: 0 every expectation held, 1 one did not or the demo failed, 2 wrong command line,"
        " 77 not root, 130 interrupted",
    )
    parser.add_argument("--quick", action="store_true", help="small files: under 2 minutes instead of about 6")
    parser.add_argument(
        "--only",
        action="append",
        choices=[situation.name for situation in SITUATIONS],
        metavar="NAME",
        help="run only this situation; may be repeated; one of: %(choices)s",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-results"),
        metavar="DIR",
        help="where timeline.png and the logs go; default: %(default)s",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    return parser.parse_args(arguments)


def _perform(situation: Situation, options: argparse.Namespace, console: Console) -> Run:
    size = situation.quick if options.quick else situation.full
    with Display(console, situation.name, size) as display:
        display.line(f"{situation.title}: {size / 1e6:g} MB")
        recording = perform(situation, size, display, options.output / "logs" / situation.name)
        display.line(f"{recording.duration:5.1f} s  done, {recording.result.goodput / 1e6:.1f} Mb/s")
    return Run(situation, recording, situation.judge(recording))


def _demo(options: argparse.Namespace, console: Console) -> int:
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        if options.json is not None:
            options.json.touch()
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from error
    console.print("kernel {kernel}, congestion control {congestion_control}".format(**environment()), highlight=False)
    chosen = [s for s in SITUATIONS if options.only is None or s.name in options.only]
    runs = [_perform(situation, options, console) for situation in chosen]
    console.print(rates_table(runs), expectations_table(runs))
    picture = options.output / "timeline.png"
    # Not at the top: matplotlib takes a second, which --help and errors do not have.
    from mptcp_lab.demo.timeline import draw

    draw(runs, picture)
    console.print(f"time line of both networks: {picture}", highlight=False, soft_wrap=True)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(runs), indent=2) + "\n", encoding="utf-8")
    failures = sum(run.failures for run in runs)
    if failures:
        raise UserError(f"{failures} expectations did not hold; logs: {options.output / 'logs'}")
    return 0


def run(program: str, arguments: Sequence[str] | None = None) -> int:
    """Run the demo with command-line arguments. Raises UserError if an expectation does not hold or it cannot go on."""
    options = _options(program, arguments)
    try:
        return _demo(options, Console(width=None if sys.stdout.isatty() else _WIDTH))
    except UserError:
        raise
    except Exception as error:  # a defect of ours: one line for the user, the rest for a bug report
        details = options.output / "traceback.txt"
        details.write_text(traceback.format_exc(), encoding="utf-8")
        raise UserError(f"{type(error).__name__}: {error}; details: {details}") from error
