"""A set of results as a document: the seed's number, ours, same or different, and why."""

from __future__ import annotations

import html
import os
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.scenario.judge import compare, judge
from mptcp_lab.scenario.result_tables import number, spread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mptcp_lab.scenario.files import Experiment
    from mptcp_lab.scenario.judge import Verdict
    from mptcp_lab.scenario.results import Result

_HEADINGS: Final = ("variant", "figure", "kernel", "seed", "ours", "unit", "idle %", "same")
_SAME: Final = {True: "yes", False: "no", None: ""}
_SETS: Final = {
    "s0": "S0: the MPTCP proxy with throttling (diploma thesis, NTUA, about 2014)",
    "s1": "S1: MPTCP hands-on (SARA / University of Amsterdam, 2012)",
    "s2": "S2: virtual network scenarios for MPTCP (UPM Madrid, 2013)",
}
_STYLE: Final = "body{font:15px sans-serif;max-width:70em;margin:2em auto}td,th{padding:2px 8px;border:1px solid #ccc}"


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of level 1 to 3."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Some sentences, or a command."""

    text: str
    command: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below headings."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Points:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG file."""

    path: Path


Block = Heading | Paragraph | Table | Points | Picture


def make_report(pairs: Sequence[tuple[Experiment, Result]], command: str, *, pictures: bool) -> list[Block]:
    """The document. `command` is what printed it."""
    blocks: list[Block] = [
        Heading(1, "The seeds' experiments, repeated"),
        Paragraph(f"Printed by `{command}`; each section has the command that measured its numbers."),
        Paragraph(_environment(pairs)),
        Paragraph(
            "Numbers are medians, with the range of all runs in brackets. *Same*: within 25 % of the seed's number, or"
            " within what the scenario's file says. *Idle*: the share of the processors' time in which they had nothing"
            " to do during the runs; near 0 the machine was measured, and not the network."
        ),
        Paragraph(_count(pairs)),
    ]
    for name, members in groupby(pairs, key=lambda pair: pair[0].family.split("/")[0]):
        blocks.append(Heading(2, _SETS.get(name, name)))
        families: dict[str, list[tuple[Experiment, Result]]] = defaultdict(list)
        for experiment, result in members:
            families[experiment.family].append((experiment, result))
        for family in families.values():
            blocks += _section(family, pictures=pictures)
    return blocks


def _environment(pairs: Sequence[tuple[Experiment, Result]]) -> str:
    kernels = sorted(
        {
            f"{result.kernel} is {result.release} ({result.congestion_control}, {result.processors} processors)"
            for _, result in pairs
        }
    )
    return f"Kernels: {'; '.join(kernels)}."


def _count(pairs: Sequence[tuple[Experiment, Result]]) -> str:
    rows = [row for experiment, result in pairs for row in compare(experiment.scenario, result.statistics)]
    same, different = (sum(row.same is value for row in rows) for value in (True, False))
    return f"{same + different} numbers of the seeds are compared: {same} are the same, {different} are different."


def _section(pairs: Sequence[tuple[Experiment, Result]], *, pictures: bool) -> Iterator[Block]:
    experiment = pairs[0][0]
    title = experiment.scenario.title if experiment.variant is None else experiment.family_title
    yield Heading(3, f"{experiment.family}: {title}")
    for seed in dict.fromkeys(experiment.scenario.seed for experiment, _ in pairs):
        if seed is not None:
            yield Paragraph(f"Seed: {seed}")
    for command in dict.fromkeys(_command(result) for _, result in pairs):
        yield Paragraph(command, command=True)
    yield from _remarks(pairs)
    yield Table(_HEADINGS, [row for experiment, result in pairs for row in _rows(experiment, result)])
    reasons: dict[str, list[str]] = defaultdict(list)
    for experiment, result in pairs:
        for row in compare(experiment.scenario, result.statistics):
            if row.same is False:
                label = row.figure if experiment.variant is None else f"{experiment.variant} {row.figure}"
                reasons[row.why or "The scenario's file gives no reason."].append(label)
    points = [f"Different ({', '.join(dict.fromkeys(figures))}): {why}" for why, figures in reasons.items()]
    yield Points([*points, *_verdicts(pairs)])
    if pictures:
        for _, result in pairs:
            if (result.directory / "timeline.png").exists():
                yield Picture(result.directory / "timeline.png")


def _command(result: Result) -> str:
    command = f"lab/mptcp-lab run {result.name.split(':')[0]} --kernel {result.kernel} --repeat {len(result.runs)}"
    if result.seed != 1:
        command += f" --seed {result.seed}"
    if result.time_scale != 1:
        command += f" --time-scale {result.time_scale:g}"
    return command


def _remarks(pairs: Sequence[tuple[Experiment, Result]]) -> Iterator[Block]:
    scenario, scales = pairs[0][0].scenario, sorted({result.time_scale for _, result in pairs} - {1})
    if scenario.scale != 1:
        yield Paragraph(f"Rates here are those of the seed divided by {scenario.scale:g}; so are its numbers below.")
    if scales:
        factors = ", ".join(f"{scale:g}" for scale in scales)
        yield Paragraph(f"All times and file sizes are those of the scenario multiplied by {factors}.")


def _rows(experiment: Experiment, result: Result) -> Iterator[list[str]]:
    idle = number(None if result.idle is None else result.idle.median)
    for error in result.errors:
        yield [experiment.variant or "", "failed", result.kernel, "", error, "", "", ""]
    for row in compare(experiment.scenario, result.statistics) if result.statistics else ():
        seed = "" if row.seed is None else number(row.seed)
        ours, variant = spread(row.ours), experiment.variant or ""
        yield [variant, row.figure, result.kernel, seed, ours, row.unit, idle, _SAME[row.same]]


def verdicts_of(pairs: Sequence[tuple[Experiment, Result]]) -> Iterator[tuple[Experiment, str, Verdict]]:
    """All verdicts, each with its experiment and kernel; variants are compared with those on the same kernel."""
    for kernel in dict.fromkeys(result.kernel for _, result in pairs):
        chosen = {experiment.name: (experiment, result) for experiment, result in pairs if result.kernel == kernel}
        statistics = {name: result.statistics for name, (_, result) in chosen.items()}
        verdicts = judge([experiment for experiment, _ in chosen.values()], kernel, statistics)
        for name, listed in verdicts.items():
            yield from ((chosen[name][0], kernel, verdict) for verdict in listed)


def _verdicts(pairs: Sequence[tuple[Experiment, Result]]) -> Iterator[str]:
    for experiment, kernel, verdict in verdicts_of(pairs):
        variant = f"{experiment.variant}, " if experiment.variant else ""
        held = "held" if verdict.held else "DID NOT HOLD"
        yield f"Expected ({variant}{kernel}): {verdict.expected}; seen {verdict.seen}: {held}."


def as_markdown(blocks: Sequence[Block], relative_to: Path) -> str:
    """The document in Markdown; pictures are linked from the directory `relative_to`."""
    return "\n\n".join(_markdown(block, relative_to) for block in blocks) + "\n"


def _markdown(block: Block, relative_to: Path) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {text}"
        case Paragraph(text, command):
            return f"```\n{text}\n```" if command else text
        case Table(headings, rows):
            cells = [headings, ["---"] * len(headings), *rows]
            return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)
        case Points(items):
            return "\n".join(f"* {item}" for item in items)
        case Picture(path):
            return f"![time line]({os.path.relpath(path, relative_to)})"


def as_html(blocks: Sequence[Block], relative_to: Path) -> str:
    """The same as a page."""
    body = "\n".join(_html(block, relative_to) for block in blocks)
    return f'<!doctype html>\n<meta charset="utf-8"><style>{_STYLE}</style>\n{body}\n'


def _html(block: Block, relative_to: Path) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Paragraph(text, command):
            return f"<pre>{html.escape(text)}</pre>" if command else f"<p>{html.escape(text)}</p>"
        case Table(headings, rows):
            head = "".join(f"<th>{html.escape(cell)}</th>" for cell in headings)
            lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
            return f"<table><tr>{head}</tr>\n" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
        case Points(items):
            return "<ul>" + "".join(f"<li>{html.escape(item)}</li>" for item in items) + "</ul>"
        case Picture(path):
            return f'<img src="{html.escape(os.path.relpath(path, relative_to))}" width="900">'
