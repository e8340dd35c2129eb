"""A set of results as a document: the seed's number, ours, same or different, and why."""

from __future__ import annotations

import html
import os
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.scenario.judge import Match, compare, judge, number
from mptcp_lab.scenario.result_tables import spread
from mptcp_lab.scenario.scenario_schema import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mptcp_lab.scenario.files import Experiment
    from mptcp_lab.scenario.judge import Verdict
    from mptcp_lab.scenario.results import Result

_HEADINGS: Final = ("scenario", "kernel", "measured at", "idle %", "ours", "seed")
_SETS: Final = {
    "s0": "S0: the MPTCP proxy with throttling (diploma thesis, NTUA, about 2014)",
    "s1": "S1: MPTCP hands-on (SARA / University of Amsterdam, 2012)",
    "s2": "S2: virtual network scenarios for MPTCP (UPM Madrid, 2013)",
    "s3": "S3: MPTCP under packet reordering and path heterogeneity (University of Bristol, 2016)",
    "s4": "S4: SDN-based test beds for MPTCP (BME Budapest, 2014)",
}
_STYLE: Final = "body{font:15px sans-serif;max-width:70em;margin:2em auto}td,th{padding:2px 8px;border:1px solid #ccc}"


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of level 1 to 3."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Some sentences."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below headings."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG file."""

    path: Path


Block = Heading | Paragraph | Table | Picture


def make_report(pairs: Sequence[tuple[Experiment, Result]], command: str, *, pictures: bool) -> list[Block]:
    """The document. `command` is what printed it."""
    blocks: list[Block] = [
        Heading(1, "The seeds' experiments, repeated"),
        Paragraph(f"Printed by `{command}`; each row of *what was found* has the command that measured its numbers."),
        Paragraph(_environment(pairs)),
        Paragraph(
            "Numbers are medians, with the range of all runs in brackets. *Same*: within 25 % of the seed's number, or"
            " within what the scenario's file says. *Measured at*: the commit. *Idle*: the share of time in which the"
            " processors had nothing to do during the runs; near 0 the machine was measured, and not the network."
        ),
        Table(
            ("seed", "numbers", *(match.value for match in Match)),
            [_count(_SETS.get(name, name), members) for name, members in _by_set(pairs)],
        ),
    ]
    for name, members in _by_set(pairs):
        blocks.append(Heading(2, _SETS.get(name, name)))
        blocks += _of_seed(members, pictures=pictures)
    return blocks


def _by_set(pairs: Sequence[tuple[Experiment, Result]]) -> Iterator[tuple[str, list[tuple[Experiment, Result]]]]:
    for name, members in groupby(pairs, key=lambda pair: pair[0].family.split("/")[0]):
        yield name, list(members)


def _environment(pairs: Sequence[tuple[Experiment, Result]]) -> str:
    kernels = sorted(
        {
            f"{result.kernel} is {result.release} ({result.congestion_control}, {result.processors} processors)"
            for _, result in pairs
        }
    )
    return f"Kernels: {'; '.join(kernels)}."


def _count(name: str, pairs: Sequence[tuple[Experiment, Result]]) -> list[str]:
    rows = [row for experiment, result in pairs for row in compare(experiment.scenario, result.statistics)]
    counts = [sum(row.match is match for row in rows) for match in Match]
    return [name, str(sum(counts)), *map(str, counts)]


def _of_seed(pairs: Sequence[tuple[Experiment, Result]], *, pictures: bool) -> Iterator[Block]:
    families: dict[str, list[tuple[Experiment, Result]]] = defaultdict(list)
    for experiment, result in pairs:
        families[experiment.family].append((experiment, result))
    findings = [[family, _title(members), _seed(members), _finding(members)] for family, members in families.items()]
    yield Table(("scenario", "what", "what the seed found", "what was found"), findings)
    yield Table(_HEADINGS, [row for experiment, result in pairs for row in _rows(experiment, result)])
    for members in families.values() if pictures else ():
        charts = [result.directory if e.variant is None else result.directory.parent for e, result in members]
        yield from _pictures(directory / "bars.png" for directory in dict.fromkeys(charts))
        yield from _pictures(result.directory / "timeline.png" for _, result in members)


def _pictures(paths: Iterable[Path]) -> Iterator[Picture]:
    yield from (Picture(path) for path in paths if path.exists())


def _title(pairs: Sequence[tuple[Experiment, Result]]) -> str:
    experiment = pairs[0][0]
    scenario = experiment.scenario
    title = scenario.title if experiment.variant is None else experiment.family_title
    scales = sorted({result.time_scale for _, result in pairs} - {1})
    rates = "" if scenario.scale == 1 else f"; rates are the seed's divided by {scenario.scale:g}"
    return f"{title}{rates}" + "".join(f"; times and sizes multiplied by {scale:g}" for scale in scales)


def _seed(pairs: Sequence[tuple[Experiment, Result]]) -> str:
    return " ".join(dict.fromkeys(e.scenario.seed for e, _ in pairs if e.scenario.seed is not None))


def _finding(pairs: Sequence[tuple[Experiment, Result]]) -> str:
    """What was expected and whether it held, why numbers are not the seed's, and the commands that measured them."""
    sentences = list(_verdicts(pairs))
    reasons: dict[tuple[Match, str], list[str]] = defaultdict(list)
    for experiment, result in pairs:
        for row in compare(experiment.scenario, result.statistics):
            if row.match in (Match.DIFFERENT, Match.NOT_COMPARABLE):
                label = row.figure if experiment.variant is None else f"{experiment.variant} {row.figure}"
                reasons[row.match, row.why or "The scenario's file gives no reason."].append(label)
    for (match, why), figures in reasons.items():
        sentences.append(f"{match.value.capitalize()} ({', '.join(dict.fromkeys(figures))}): {why}")
    commands = dict.fromkeys(f"`{_command(result)}`" for _, result in pairs)
    return " ".join([*sentences, *commands])


def _command(result: Result) -> str:
    command = f"lab/mptcp-lab run {result.name.split(':')[0]} --kernel {result.kernel} --repeat {len(result.runs)}"
    if result.seed != 1:
        command += f" --seed {result.seed}"
    if result.time_scale != 1:
        command += f" --time-scale {result.time_scale:g}"
    return command


def _rows(experiment: Experiment, result: Result) -> Iterator[list[str]]:
    idle = number(None if result.idle is None else result.idle.median)
    place = [experiment.name.partition("/")[2], result.kernel, result.commit or "unknown"]
    for error in result.errors:
        yield [*place, "", f"failed: {error}", ""]
    rows = compare(experiment.scenario, result.statistics) if result.statistics else []
    if rows:
        ours = "; ".join(f"{row.figure} {spread(row.ours)} {row.unit}".rstrip() for row in rows)
        seed = "; ".join(
            f"{row.figure} {number(row.seed)}: {row.match or 'not measured'}" for row in rows if row.seed is not None
        )
        yield [*place, idle, ours, seed]


def verdicts_of(pairs: Sequence[tuple[Experiment, Result]]) -> Iterator[tuple[Experiment, str, Verdict]]:
    """All verdicts, each with its experiment and kernel; variants are compared with those on the same kernel."""
    for kernel in dict.fromkeys(result.kernel for _, result in pairs):
        chosen = {experiment.name: (experiment, result) for experiment, result in pairs if result.kernel == kernel}
        statistics = {name: result.statistics for name, (_, result) in chosen.items()}
        verdicts = judge([experiment for experiment, _ in chosen.values()], kernel, statistics)
        for name, listed in verdicts.items():
            yield from ((chosen[name][0], kernel, verdict) for verdict in listed)


def _verdicts(pairs: Sequence[tuple[Experiment, Result]]) -> Iterator[str]:
    """Each expectation once, with what was seen in each variant in which it held, and in which it did not."""
    seen: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for experiment, kernel, verdict in verdicts_of(pairs):
        place = ", ".join(filter(None, [experiment.variant, "" if kernel == Kernel.NATIVE else kernel]))
        seen[verdict.expected, verdict.held].append(f"{verdict.seen} ({place})" if place else verdict.seen)
    for (expected, held), values in seen.items():
        yield f"{expected}: {', '.join(values)}." if held else f"DID NOT HOLD: {expected}: {', '.join(values)}."


def as_markdown(blocks: Sequence[Block], relative_to: Path) -> str:
    """The document in Markdown; pictures are linked from the directory `relative_to`."""
    return "\n\n".join(_markdown(block, relative_to) for block in blocks) + "\n"


def _markdown(block: Block, relative_to: Path) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {text}"
        case Paragraph(text):
            return text
        case Table(headings, rows):
            cells = [headings, ["---"] * len(headings), *rows]
            return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)
        case Picture(path):
            return f"![chart]({os.path.relpath(path, relative_to)})"


def as_html(blocks: Sequence[Block], relative_to: Path) -> str:
    """The same as a page."""
    body = "\n".join(_html(block, relative_to) for block in blocks)
    return f'<!doctype html>\n<meta charset="utf-8"><style>{_STYLE}</style>\n{body}\n'


def _html(block: Block, relative_to: Path) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{html.escape(text)}</p>"
        case Table(headings, rows):
            head = "".join(f"<th>{html.escape(cell)}</th>" for cell in headings)
            lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
            return f"<table><tr>{head}</tr>\n" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
        case Picture(path):
            return f'<img src="{html.escape(os.path.relpath(path, relative_to))}" width="900">'
