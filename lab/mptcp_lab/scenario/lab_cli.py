"""Command line of the scenarios: run, list, show, compare, draw, keep, seeds, report."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

from mptcp_lab.argument_types import checked
from mptcp_lab.lab_errors import LabError
from mptcp_lab.scenario import seed_lines
from mptcp_lab.scenario.display import Display
from mptcp_lab.scenario.files import DIRECTORY, Experiment, available, chosen, load, scaled
from mptcp_lab.scenario.fingerprint import at_this_set_up
from mptcp_lab.scenario.kept import read_all, write_kept
from mptcp_lab.scenario.kernel_choice import choose
from mptcp_lab.scenario.plan import event_commands, reshape
from mptcp_lab.scenario.report import as_html, as_markdown, directory_of_family, make_report, verdicts_of
from mptcp_lab.scenario.result_tables import compare_table, summary_table, verdict_table
from mptcp_lab.scenario.results import Result, read_results
from mptcp_lab.scenario.runner import Options, expected_seconds, run_all
from mptcp_lab.scenario.scenario_schema import Kernel
from mptcp_lab.scenario.stage import describe
from mptcp_lab.scenario.summary import make_summary
from mptcp_lab.sdn.switch_plan import whole_plan
from mptcp_throttle.command_line import add_version
from mptcp_throttle.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mptcp_lab.scenario.report import Block

_WIDTH: Final = 120
_OUT: Final = Path("lab-results")
_KEPT: Final = Path("lab/measured")
_STATUSES: Final = (
    "exit status: 0 done, and every expectation held; 1 one did not, or a run failed; 2 wrong command line;"
    " 78 a scenario file is not valid; 77 not root; 130 interrupted"
)

_KERNEL: Final = checked(Kernel, ", ".join(Kernel))
_COUNT: Final = checked(int, "a whole number from 1 to 100", lambda count: 1 <= count <= 100)
_FACTOR: Final = checked(float, "a number from 0.001 to 1000", lambda factor: 0.001 <= factor <= 1000)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Experiments with MPTCP from YAML files, on real kernels. See docs/contribute/lab.md.",
        epilog=_STATUSES,
    )
    add_version(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run scenarios", epilog=_STATUSES)
    run.add_argument(
        "scenarios", nargs="+", metavar="SCENARIO", help="s0 (all of a set), s0/NAME, s0/NAME:VARIANT, or a .yaml file"
    )
    run.add_argument(
        "--kernel",
        type=_KERNEL,
        metavar="KERNEL",
        help="native, debian-6.1 or debian-6.12; default: native if that has all it takes",
    )
    run.add_argument("--repeat", type=_COUNT, metavar="N", help="runs of each; default: as the scenario says")
    run.add_argument(
        "--seed", type=int, default=1, metavar="N", help="of the moments flows begin; default: %(default)s"
    )
    run.add_argument(
        "--time-scale", type=_FACTOR, default=1.0, metavar="X", help="multiply all times and file sizes by X"
    )
    run.add_argument("--out", type=Path, default=_OUT, metavar="DIR", help="where results go; default: %(default)s")
    run.add_argument("--inside", type=_KERNEL, help=argparse.SUPPRESS)

    commands.add_parser("list", help="list the scenarios")

    show = commands.add_parser("show", help="show what a scenario does: its text, commands and events")
    show.add_argument("scenarios", nargs="+", metavar="SCENARIO")

    compare = commands.add_parser("compare", help="two directories of results side by side")
    compare.add_argument("left", type=Path, metavar="A")
    compare.add_argument("right", type=Path, metavar="B")

    draw = commands.add_parser("draw", help="draw the pictures of the results in a directory again")
    draw.add_argument("directory", type=Path, metavar="DIR")

    keep = commands.add_parser("keep", help="put the results in a directory in the repository's tables")
    keep.add_argument("directory", type=Path, metavar="DIR")
    keep.add_argument(
        "--tables", type=Path, default=_KEPT, metavar="DIR", help="where the tables are; default: %(default)s"
    )

    seeds = commands.add_parser("seeds", help="compare lab/seeds.csv with the seeds that scenarios cite")
    seeds.add_argument("directory", type=Path, metavar="DIR", help="has S0-*.txt to S4-*.txt")
    seeds.add_argument("--write", action="store_true", help="write the table instead")

    report = commands.add_parser("report", help="a document of all results in a directory")
    report.add_argument("directory", type=Path, metavar="DIR")
    report.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="a summary in Markdown, to this file; default: all figures, in report.md and report.html in DIR",
    )
    return parser


def run(program: str) -> int:
    """Run the command line. Raises UserError if it cannot be done, Interrupted at a signal."""
    options = _parser(program).parse_args()
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    match options.command:
        case "run":
            return _run(options, console)
        case "list":
            return _list(console)
        case "show":
            return _show(options.scenarios)
        case "compare":
            return _compare(options.left, options.right, console)
        case "draw":
            return _draw_again(options.directory, console)
        case "keep":
            return _keep(options.directory, options.tables, console)
        case "seeds":
            return _seeds(options.directory, write=options.write, console=console)
        case _:
            return _report(options.directory, options.output, console)


def _run(options: argparse.Namespace, console: Console) -> int:
    experiments = chosen(options.scenarios)
    if options.inside is not None:
        planned = [(experiment, options.inside) for experiment in experiments]
    else:
        planned = []
        for experiment in experiments:
            kernel, reason = choose(experiment.scenario, options.kernel)
            console.print(f"{experiment.name}: {kernel}, {reason}", highlight=False, soft_wrap=True)
            planned.append((experiment, kernel))
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from error
    how = Options(options.repeat, options.seed, options.time_scale, options.out)
    total = sum(
        expected_seconds(scaled(experiment.scenario, how.time_scale)) * how.repeats(experiment.scenario)
        for experiment, _ in planned
    )
    directories = run_all(planned, how, Display(console, total), options.inside)
    if options.inside is not None:
        return 0
    results = [read_results(directory)[0] for directory in directories]
    return _conclude(list(zip(experiments, results, strict=True)), options.out, console)


def _conclude(pairs: Sequence[tuple[Experiment, Result]], out: Path, console: Console) -> int:
    verdicts = list(verdicts_of(pairs))
    console.print(summary_table(pairs))
    if verdicts:
        console.print(verdict_table(verdicts))
    _draw(pairs)
    console.print(f"samples, logs and pictures: {out}", highlight=False, soft_wrap=True)
    failed = sum(len(result.errors) for _, result in pairs)
    broken = sum(not verdict.held for _, _, verdict in verdicts)
    if failed or broken:
        raise UserError(f"{failed} runs failed, {broken} expectations did not hold")
    return 0


def _draw(pairs: Sequence[tuple[Experiment, Result]]) -> None:
    # Not at the top: matplotlib takes a second, which --help and errors do not have.
    from mptcp_lab.scenario.plots import draw_bars, draw_split, draw_time_lines, draw_windows

    families = defaultdict(list)
    for experiment, result in pairs:
        draw_time_lines([(experiment, result)], result.directory / "timeline.png")
        draw_windows(experiment, result, result.directory / "windows.png")
        draw_split(result, result.directory / "split.png")
        families[experiment.family, result.kernel].append((experiment, result))
    for members in families.values():
        draw_bars(members, directory_of_family(*members[0]) / "bars.png")


def _draw_again(directory: Path, console: Console) -> int:
    # Not `read_all`: tables of kept results have no samples.
    pairs = _paired(read_results(directory))
    _draw(pairs)
    console.print(f"pictures of {len(pairs)} experiments: {directory}", highlight=False, soft_wrap=True)
    return 0


def _list(console: Console) -> int:
    table = Table(title="Scenarios")
    for heading in ("scenario", "variants", "minutes", "what"):
        table.add_column(heading, justify="right" if heading == "minutes" else "left")
    for name, path in available().items():
        experiments = load(name, path)
        variants = ", ".join(e.variant for e in experiments if e.variant is not None)
        seconds = sum(expected_seconds(e.scenario) * e.scenario.repeat for e in experiments)
        table.add_row(name, variants, f"{seconds / 60:.1f}", experiments[0].family_title)
    console.print(table)
    return 0


def _show(names: Sequence[str]) -> int:
    for experiment in chosen(names):
        scenario = experiment.scenario
        seed = "" if scenario.seed is None else f"# {scenario.seed.finding}\n"
        print(f"# {experiment.name}: {scenario.title}\n{seed}{whole_plan(scenario)}", end="")
        for name, flow in scenario.flows.items():
            print(f"at {flow.start:g} s: flow {name} ({flow.protocol}) from {flow.sender} to {flow.receiver}")
        for event in scenario.events:
            print(f"at {event.at}: {describe(event)}")
            for command in event_commands(scenario, event):
                print(f"    {command}")
            scenario = reshape(scenario, event)
        if scenario.until is not None:
            print(f"at {scenario.until}: the end")
    return 0


def _paired(results: Iterable[Result]) -> list[tuple[Experiment, Result]]:
    """The results with the experiments they are of, as the files have them now and in their order.

    Those of another set-up than the file has now are left out.
    """
    pairs = []
    loaded: dict[str, dict[str, Experiment]] = {}
    for result in results:
        if result.file not in loaded:
            loaded[result.file] = {e.name: e for e in load(result.name.split(":")[0], DIRECTORY / result.file)}
        experiment = loaded[result.file].get(result.name)
        if experiment is None:
            raise LabError(f"{result.directory}: {result.file} has no {result.name} any more")
        valid = at_this_set_up(result, experiment.scenario)
        if valid is not None:
            pairs.append((experiment, valid))
    order = {name: number for number, name in enumerate(e for names in loaded.values() for e in names)}
    return sorted(pairs, key=lambda pair: (pair[0].family, order[pair[0].name], pair[1].kernel != Kernel.NATIVE))


def _compare(left_directory: Path, right_directory: Path, console: Console) -> int:
    left, right = (
        {(e.name, r.kernel): (e, r) for e, r in _paired(read_all(directory))}
        for directory in (left_directory, right_directory)
    )
    by_kernel = set(left) & set(right)
    if not by_kernel:
        # Then the kernel may be what is to be compared.
        left, right = ({(name, ""): pair for (name, _), pair in side.items()} for side in (left, right))
    rows = [
        (
            " ".join(key).strip(),
            figure,
            section.unit,
            result.statistics.get(figure),
            right[key][1].statistics.get(figure),
        )
        for key, (experiment, result) in left.items()
        if key in right
        for figure, section in experiment.scenario.report.items()
    ]
    if not rows:
        raise LabError(f"{left_directory} and {right_directory}: have no scenario in common")
    console.print(compare_table((str(left_directory), str(right_directory)), rows))
    return 0


def _keep(directory: Path, tables: Path, console: Console) -> int:
    measured = read_results(directory)
    for result in measured:
        if Path(result.file).is_absolute():
            raise LabError(f"{result.directory}: {result.file} is not a scenario of the project")
        if not result.commit or result.commit.endswith("-dirty"):
            raise LabError(f"{result.directory}: was not measured at a commit; allowed: a checkout without changes")
    kept = read_all(tables) if any(tables.glob("*.csv")) else []
    results = {(result.name, result.kernel): result for result in (*kept, *measured)}
    try:
        written = write_kept(tables, [result for _, result in _paired(results.values())])
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from error
    console.print(f"written: {', '.join(map(str, written))}", highlight=False, soft_wrap=True)
    return 0


def _seeds(directory: Path, *, write: bool, console: Console) -> int:
    experiments = seed_lines.experiments()
    found = seed_lines.read_seeds(directory, seed_lines.cited(experiments))
    wrong = list(seed_lines.contradictions(experiments, found))
    if write:
        seed_lines.write_table(found)
    elif found != seed_lines.read_table():
        wrong.append(
            f"{seed_lines.TABLE}: is not what is on the cited lines; allowed: what `seeds {directory} --write` writes"
        )
    if wrong:
        raise LabError("\n".join(wrong))
    console.print(f"{len(found)} lines of the seeds have the numbers that {len(experiments)} experiments cite")
    return 0


def report_of(directory: Path, output: Path | None) -> list[Block]:
    """What `report DIRECTORY [--output OUTPUT]` writes. Raises LabError, and ConfigError for a scenario of a result."""
    command = f"lab/mptcp-lab report {directory}" + ("" if output is None else f" --output {output}")
    pairs = _paired(read_all(directory))
    if output is None:
        return make_report(pairs, command)
    families = {experiment.family for experiment, _ in pairs}
    sets = sorted({family.partition("/")[0] for family in families})
    known = chosen([name for name in sets if name in {family.split("/")[0] for family in available()}])
    return make_summary(pairs, command, known)


def _report(directory: Path, output: Path | None, console: Console) -> int:
    blocks = report_of(directory, output)
    target = output or directory / "report.md"
    try:
        target.write_text(as_markdown(blocks, target.parent), encoding="utf-8")
        if output is None:
            target.with_suffix(".html").write_text(as_html(blocks, target.parent), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from error
    console.print(f"written: {target}", highlight=False, soft_wrap=True)
    return 0
