"""Results as tables for people."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.table import Table

from mptcp_lab.scenario.judge import Match, compare, number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mptcp_lab.scenario.files import Experiment
    from mptcp_lab.scenario.judge import Statistic, Verdict
    from mptcp_lab.scenario.results import Result

_MATCHES = {Match.SAME: "[green]same[/]", Match.DIFFERENT: "[yellow]different[/]"}


def spread(statistic: Statistic | None) -> str:
    """The median, and the range if there were several runs."""
    if statistic is None:
        return "-"
    if statistic.runs == 1:
        return number(statistic.median)
    return f"{number(statistic.median)} ({number(statistic.least)}-{number(statistic.most)})"


def summary_table(pairs: Iterable[tuple[Experiment, Result]]) -> Table:
    """Every figure beside the seed's."""
    table = Table(title="Figures: median (range) of all runs, beside the seed's")
    for heading in ("scenario", "kernel", "figure", "ours", "seed", "unit", "idle %", ""):
        table.add_column(heading, justify="right" if heading in ("ours", "seed", "idle %") else "left")
    for experiment, result in pairs:
        name, kernel, idle = experiment.name, result.release, number(None if not result.idle else result.idle.median)
        for error in result.errors:
            table.add_row(name, kernel, f"[bold red]failed[/]: {error}")
            name = kernel = ""
        for row in compare(experiment.scenario, result.statistics) if result.statistics else ():
            seed = "" if row.seed is None else number(row.seed)
            match = "" if row.match is None else _MATCHES.get(row.match, row.match)
            table.add_row(name, kernel, row.figure, spread(row.ours), seed, row.unit, idle, match)
            name = kernel = ""
        table.add_section()
    return table


def verdict_table(verdicts: Iterable[tuple[Experiment, str, Verdict]]) -> Table:
    """What was expected, on which kernel, what was seen, and whether it held."""
    table = Table(title="Expectations")
    for heading in ("scenario (kernel)", "expected", "seen", "held"):
        table.add_column(heading)
    for _, members in groupby(verdicts, key=lambda item: (item[0].name, item[1])):
        for number_, (experiment, kernel, verdict) in enumerate(members):
            name = "" if number_ else f"{experiment.name}\n({kernel})"
            held = "[green]yes[/]" if verdict.held else "[bold red]NO[/]"
            table.add_row(name, verdict.expected, verdict.seen, held)
        table.add_section()
    return table


def compare_table(
    names: tuple[str, str], rows: Iterable[tuple[str, str, str, Statistic | None, Statistic | None]]
) -> Table:
    """Two sets of results side by side."""
    table = Table(title="Figures of two sets of results")
    for heading in ("scenario", "figure", *names, "unit", "ratio"):
        table.add_column(heading, justify="right" if heading in (*names, "ratio") else "left")
    last = ""
    for scenario, figure, unit, left, right in rows:
        ratio = "-" if left is None or right is None or not left.median else f"{right.median / left.median:.2f}"
        table.add_row("" if scenario == last else scenario, figure, spread(left), spread(right), unit, ratio)
        last = scenario
    return table
