"""The demo: the scenarios of the set `demo`, their rates as one table, and one picture of all.

`python -m mptcp_lab.demo`: the exit status is described in `--help`.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mptcp_lab.program import run_program
from mptcp_throttle.errors import UserError
from mptcp_throttle.model import ClassifierKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from mptcp_lab.scenario.files import Experiment
    from mptcp_lab.scenario.judge import Verdict
    from mptcp_lab.scenario.results import Result

    Pair = tuple[Experiment, Result]

_PROGRAM: Final = "run-demo"
_WIDTH: Final = 120
_PAGE_PORT: Final = 9722
_NETWORKS: Final = {"ethernet": "Ethernet", "wifi": "Wi-Fi"}
SITUATIONS: Final = ("plain-tcp", "mptcp-uncapped", "capped-1mbit", "rate-change", "wifi-lost", "upload-capped")
"""The scenarios, in the order in which they are run.

One after another: while services start, two processors are busy, and others would be measured late.
"""

FULL_SITUATIONS: Final = (*SITUATIONS, "backup")
"""The scenarios of `--full`."""

BOTH_METHODS: Final = ("capped-1mbit", "as-in-the-thesis")
"""The scenarios of `--as-in-the-thesis`: one download with the default configuration, and with that of the thesis."""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Download through a real MPTCP proxy in network namespaces, and measure both access networks:"
        " Ethernet with 10 Mb/s and Wi-Fi with 56 Mb/s.",
        epilog="exit status: 0 every expectation held, 1 one did not or the demo failed, 2 wrong command line,"
        " 77 not root, 130 interrupted",
    )
    parser.add_argument(
        "--full", action="store_true", help="large files, and the situation `backup`: about 6 minutes instead of 1.5"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--as-in-the-thesis",
        action="store_true",
        help="run one download by the default method, and by that of the thesis (config/examples/thesis)",
    )
    which.add_argument(
        "--only",
        action="append",
        choices=FULL_SITUATIONS,
        metavar="NAME",
        help="run only this situation; may be repeated; one of: %(choices)s",
    )
    parser.add_argument(
        "--classifier",
        type=ClassifierKind,
        choices=list(ClassifierKind),
        default=ClassifierKind.AUTO,
        help="what leads subflows to their classes: daemon.classifier; default: %(default)s",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-results"),
        metavar="DIR",
        help="where timeline.png, samples and logs go; default: %(default)s",
    )
    parser.add_argument(
        "--watch",
        type=int,
        nargs="?",
        const=_PAGE_PORT,
        metavar="PORT",
        help="serve the page of mptcp-throttle on this port of 127.0.0.1 meanwhile; PORT: %(const)s if left out",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    return parser.parse_args()


def run() -> int:
    """Run the demo. Raises UserError if an expectation does not hold or it cannot go on."""
    options = _options()
    # Imports take a second, which --help and a wrong command line do not need.
    from rich.console import Console

    from mptcp_lab.scenario.display import Display
    from mptcp_lab.scenario.files import chosen
    from mptcp_lab.scenario.plots import draw_time_lines
    from mptcp_lab.scenario.report import verdicts_of
    from mptcp_lab.scenario.result_tables import verdict_table
    from mptcp_lab.scenario.results import environment, read_results
    from mptcp_lab.scenario.runner import Options, expected_seconds, run_all
    from mptcp_lab.scenario.scenario_schema import Kernel
    from mptcp_lab.watched_page import watching

    try:
        options.output.mkdir(parents=True, exist_ok=True)
        if options.json is not None:
            options.json.touch()
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from error
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    console.print("kernel {release}, congestion control {congestion_control}".format(**environment()), highlight=False)
    variant, usual = ("full", FULL_SITUATIONS) if options.full else ("short", SITUATIONS)
    in_order = [name for name in FULL_SITUATIONS if name in (options.only or usual)]
    names = BOTH_METHODS if options.as_in_the_thesis else in_order
    situations = chosen(f"demo/{name}:{variant}" for name in names)
    experiments = [_with_classifier(experiment, options.classifier) for experiment in situations]
    display = Display(console, sum(expected_seconds(experiment.scenario) for experiment in experiments))
    with nullcontext() if options.watch is None else watching(options.output / "page", options.watch) as watch:
        if watch is not None:
            console.print(f"the page, until the demo ends: {watch.address}", highlight=False, soft_wrap=True)
        how = Options(repeat=1, seed=1, time_scale=1.0, out=options.output, watch=watch)
        directories = run_all([(experiment, Kernel.NATIVE) for experiment in experiments], how, display, None)
    pairs = [(e, read_results(directory)[0]) for e, directory in zip(experiments, directories, strict=True)]
    verdicts = list(verdicts_of(pairs))
    console.print(_rates_table(pairs), verdict_table(verdicts))
    picture = options.output / "timeline.png"
    draw_time_lines(pairs, picture)
    console.print(f"time line of both networks: {picture}", highlight=False, soft_wrap=True)
    if options.json is not None:
        runs = [_as_json(pair, [verdict for e, _, verdict in verdicts if e is pair[0]]) for pair in pairs]
        machine = environment()
        kernel = {"kernel": machine["release"], "congestion_control": machine["congestion_control"]}
        data = {"environment": kernel, "runs": runs}
        options.json.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    errors = [f"{result.name}: {error}" for _, result in pairs for error in result.errors]
    broken = sum(not verdict.held for _, _, verdict in verdicts)
    if errors or broken:
        raise UserError("\n".join([*errors, f"{broken} expectations did not hold; logs: {options.output}"]))
    return 0


def _with_classifier(experiment: Experiment, classifier: ClassifierKind) -> Experiment:
    """The experiment with this `daemon.classifier`, if our services run in it and their method has no other one."""
    from mptcp_lab.scenario.scenario_schema import Method

    scenario = experiment.scenario
    if scenario.throttle is None or scenario.throttle.method is not Method.DEFAULT:
        return experiment
    throttle = scenario.throttle.model_copy(update={"classifier": classifier})
    return replace(experiment, scenario=scenario.model_copy(update={"throttle": throttle}))


def _rates_table(pairs: Sequence[Pair]) -> Table:
    """Mb/s and MB per network and situation, on the wire; and per window where a situation has several."""
    from rich.table import Table

    table = Table(title="Bytes per network (on the wire), goodput, and time from JOIN to cap")
    table.add_column("situation")
    for network in _NETWORKS.values():
        table.add_column(f"{network}\nMb/s", justify="right")
        table.add_column(f"{network}\nMB", justify="right")
    table.add_column("goodput\nMb/s", justify="right")
    table.add_column("JOIN to cap\nms", justify="right")
    for pair in pairs:
        experiment, result = pair
        cells = [
            cell
            for network in _NETWORKS
            for cell in (_cell(_figure(pair, "rate", network), 2), _cell(_figure(pair, "volume", network), 1))
        ]
        goodput, latency = _figure(pair, "goodput"), _figure(pair, "join_to_cap")
        table.add_row(_name(experiment), *cells, _cell(goodput, 2), _cell(latency, 1), style="bold")
        for label, (start, end) in result.runs[0].windows.items():
            ethernet, wifi = (_cell(_figure(pair, "rate", network, label), 2) for network in _NETWORKS)
            table.add_row(f"  {label} ({start:.1f}-{end:.1f} s)", ethernet, "", wifi, "", "", "", style="dim")
    return table


def _name(experiment: Experiment) -> str:
    return experiment.family.split("/")[1]


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _figure(pair: Pair, kind: str, network: str | None = None, window: str | None = None) -> float | None:
    """The figure of that kind, network and window; None if there is none."""
    experiment, result = pair
    for name, figure in experiment.scenario.report.items():
        if figure.kind == kind and figure.window == window and (network is None or getattr(figure, kind) == (network,)):
            return result.runs[0].figures.get(name)
    return None


def _as_json(pair: Pair, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Everything that was measured in a situation, except the samples."""
    experiment, result = pair
    measured = result.runs[0]

    def rates(window: str | None = None) -> dict[str, dict[str, float | None]]:
        return {network: {"mbps": _figure(pair, "rate", network, window)} for network in _NETWORKS}

    def whole_bytes(megabytes: float | None) -> int | None:
        return None if megabytes is None else round(megabytes * 1e6)

    volumes = {network: _figure(pair, "volume", network) for network in _NETWORKS}
    return {
        "name": _name(experiment),
        "title": experiment.family_title,
        "error": measured.error,
        "bytes": whole_bytes(_figure(pair, "payload")),
        "seconds": round(measured.seconds, 3),
        "goodput_mbps": _figure(pair, "goodput"),
        "paths": {network: rate | {"bytes": whole_bytes(volumes[network])} for network, rate in rates().items()},
        "join_to_cap_ms": _figure(pair, "join_to_cap"),
        "windows": [
            {"label": label, "start_s": start, "end_s": end, "paths": rates(label)}
            for label, (start, end) in measured.windows.items()
        ],
        "events": [{"at_s": round(event.at, 3), "text": event.text} for event in measured.events],
        "expectations": [{"expected": v.expected, "seen": v.seen, "held": v.held} for v in verdicts],
    }


def main() -> int:
    """Run the command line."""
    return run_program(_PROGRAM, run)


if __name__ == "__main__":
    sys.exit(main())
