"""A set of results as a document with all figures: the seed's number, ours, same or different, and why."""

from __future__ import annotations

import html
import os
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.scenario.effects import effects_of, lines_of
from mptcp_lab.scenario.judge import Match, compare, judge, number
from mptcp_lab.scenario.result_tables import spread
from mptcp_lab.scenario.scenario_schema import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mptcp_lab.scenario.files import Experiment
    from mptcp_lab.scenario.judge import Comparison, Verdict
    from mptcp_lab.scenario.results import Result

UNKNOWN: Final = "an unknown commit"
BUSY: Final = 10
"""The idle share in percent below which it is shown."""
FEW: Final = 2
"""Up to this number of variants, an expectation shows what was seen in each; the tables have the figures of all."""
_NAMED: Final = 6
"""Variants whose names are listed."""
_AT_ONCE: Final = 4
"""Expectations in a point of a list."""
_SIGNS: Final = {
    Match.SAME: "≈ {}",
    Match.DIFFERENT: "≠ {}",
    Match.NO_EVIDENCE: "(seed {}, the link's)",
    Match.NOT_COMPARABLE: "(seed {})",
    None: "(seed {})",
}
SETS: Final = {
    "s0": "S0: the MPTCP proxy with throttling (diploma thesis, NTUA, about 2014)",
    "s1": "S1: MPTCP hands-on (SARA / University of Amsterdam, 2012)",
    "s2": "S2: virtual network scenarios for MPTCP (UPM Madrid, 2013)",
    "s3": "S3: MPTCP under packet reordering and path heterogeneity (University of Bristol, 2016)",
    "s4": "S4: SDN-based test beds for MPTCP (BME Budapest, 2014)",
    "policies": "Policies, of no seed: budgets, a free night, overflow, a burst, a device, a video, three networks",
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
class Points:
    """A list; each of its points has a list of its own below it."""

    points: Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below headings."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG file."""

    path: Path


Block = Heading | Paragraph | Points | Table | Picture


def make_report(pairs: Sequence[tuple[Experiment, Result]], command: str) -> list[Block]:
    """The document, with the pictures that there are. `command` is what printed it."""
    usual = usual_commit(pairs)
    blocks: list[Block] = [
        *introduction(
            pairs,
            "For each experiment of a seed, an earlier system: the command that repeats it, its findings, and ours.\n"
            f"Printed by `{command}`.",
            "Numbers are medians of all runs.",
            "A range follows where it is wider than the median.",
            "`a ≈ b`: our number is a, and the seed's is b; they differ by at most 25 %, or as the scenario says.",
            "`a ≠ b`: they differ by more. `a (seed b)`: they cannot be compared.",
            "*The link's*: both are what the links carry, which is no evidence.",
            "*Idle*: the part of the time, in percent, in which the processors of some variant had nothing to do.",
            "There the processors were the limit, and not the network.",
        ),
        Table(
            ("seed", "numbers", *(match.value for match in Match)),
            [counts_of(name, members) for name, members in by_set(pairs)],
        ),
    ]
    for name, members in by_set(pairs):
        blocks.append(Heading(2, SETS.get(name, name)))
        blocks += _of_seed(members, usual)
    return blocks


def introduction(pairs: Sequence[tuple[Experiment, Result]], text: str, *remarks: str) -> Iterator[Block]:
    """The title, what the document is, on what it was measured, and how to read it."""
    measured = f"Measured at {usual_commit(pairs)}, where no other commit is named."
    yield Heading(1, "The seeds' experiments, repeated")
    yield Paragraph(text)
    yield Points([(point, ()) for point in (measured, *_kernels(pairs), *remarks)])


def usual_commit(pairs: Iterable[tuple[Experiment, Result]]) -> str:
    """At which most experiments were measured."""
    commits = Counter(result.commit or UNKNOWN for _, result in pairs)
    return commits.most_common(1)[0][0]


def by_set(pairs: Sequence[tuple[Experiment, Result]]) -> Iterator[tuple[str, list[tuple[Experiment, Result]]]]:
    """The name of each set, with its experiments."""
    for name, members in groupby(pairs, key=lambda pair: pair[0].family.split("/")[0]):
        yield name, list(members)


def by_family(pairs: Iterable[tuple[Experiment, Result]]) -> dict[str, list[tuple[Experiment, Result]]]:
    """The variants of each experiment, by its name with the set's."""
    families: dict[str, list[tuple[Experiment, Result]]] = defaultdict(list)
    for experiment, result in pairs:
        families[experiment.family].append((experiment, result))
    return families


def _kernels(pairs: Sequence[tuple[Experiment, Result]]) -> list[str]:
    """A sentence on each kernel; with the sets, where several releases have one name."""
    sets: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for experiment, result in pairs:
        text = f"{result.release} ({result.congestion_control}, {result.processors} processors)"
        sets[result.kernel][text].add(experiment.family.partition("/")[0])
    return [f"Kernel {kernel} is {'; '.join(_of_sets(releases))}." for kernel, releases in sorted(sets.items())]


def _of_sets(releases: Mapping[str, set[str]]) -> list[str]:
    if len(releases) == 1:
        return [*releases]
    return [f"{release} in {', '.join(sorted(sets))}" for release, sets in sorted(releases.items())]


def counts_of(name: str, pairs: Sequence[tuple[Experiment, Result]]) -> list[str]:
    """A set's title; how many numbers of the seed there are, and how many of them match in which way."""
    rows = [row for experiment, result in pairs for row in compare(experiment.scenario, result.statistics)]
    counts = [sum(row.match is match for row in rows) for match in Match]
    return [SETS.get(name, name), str(sum(counts)), *map(str, counts)]


def _of_seed(pairs: Sequence[tuple[Experiment, Result]], usual: str) -> Iterator[Block]:
    families, tables = by_family(pairs), _numbers(pairs)
    alone = {rows[0][0]: _in_words(figures, rows[0][1:]) for figures, rows in tables.items() if len(rows) == 1}
    yield Points(
        [
            (f"{family}: {_title(members)}. {_commands(members, usual)}", list(_findings(members, alone)))
            for family, members in families.items()
        ]
    )
    for figures, rows in tables.items():
        if len(rows) > 1:
            yield Table(("scenario", *(f"{name}, {unit}" if unit else name for name, unit in figures)), rows)
    for members in families.values():
        charts = dict.fromkeys(directory_of_family(*member) for member in members)
        yield from _pictures(directory / "bars.png" for directory in charts)
        for name in ("timeline.png", "windows.png", "split.png"):
            yield from _pictures(result.directory / name for _, result in members)


def directory_of_family(experiment: Experiment, result: Result) -> Path:
    """Where the picture of all variants is."""
    return result.directory if experiment.variant is None else result.directory.parent


def _pictures(paths: Iterable[Path]) -> Iterator[Picture]:
    yield from (Picture(path) for path in paths if path.exists())


def _title(pairs: Sequence[tuple[Experiment, Result]]) -> str:
    experiment = pairs[0][0]
    title = experiment.scenario.title if experiment.variant is None else experiment.family_title
    scales = sorted({result.time_scale for _, result in pairs} - {1})
    rates = "".join(f"; {text}" for text in scales_of([e for e, _ in pairs]))
    return f"{title}{rates}" + "".join(f"; times and sizes multiplied by {scale:g}" for scale in scales)


def scales_of(experiments: Sequence[Experiment]) -> Iterator[str]:
    """The divisors of the seed's rates, with the variants that have them, if not all do."""
    variants: dict[float, list[str]] = defaultdict(list)
    for experiment in experiments:
        variants[experiment.scenario.scale].append(experiment.variant or "")
    for scale, names in variants.items():
        if scale != 1:
            yield f"rates / {scale:g}" + (f" in {shortened(names)}" if len(variants) > 1 else "")


def shortened(variants: Sequence[str]) -> str:
    """The names of variants; of many only the first and the last."""
    if len(variants) <= _NAMED:
        return ", ".join(variants)
    return f"{variants[0]} to {variants[-1]} ({len(variants)} variants)"


def seed_of(experiments: Sequence[Experiment]) -> Iterator[str]:
    """What the seed found with the lines that say so, and in what our set-up is another one."""
    seeds = list(dict.fromkeys(e.scenario.seed for e in experiments if e.scenario.seed is not None))
    for seed in dict.fromkeys((seed.document, seed.lines, seed.finding) for seed in seeds):
        document, lines, finding = seed
        yield f"{finding.rstrip('.')} ({document}, lines {', '.join(map(str, lines))})."
    yield from (
        f"Set up otherwise: {text}" for text in dict.fromkeys(s.differs for s in seeds if s.differs is not None)
    )


def _findings(pairs: Sequence[tuple[Experiment, Result]], alone: Mapping[str, str]) -> Iterator[str]:
    """What the seed found; ours, if no table has it; what was expected; and why numbers are not the seed's."""
    yield from (f"Seed: {text}" for text in seed_of([e for e, _ in pairs]))
    for (experiment, _), name in zip(pairs, _names(pairs), strict=True):
        if name in alone:
            yield f"Ours{_label(experiment)}: {alone[name]}."
    yield from lines_of(effects_of(pairs, {e.name: e for e, _ in pairs}.values()))
    yield from _verdicts(pairs)
    yield from reasons(
        (experiment.variant or "", row)
        for experiment, result in pairs
        for row in compare(experiment.scenario, result.statistics)
    )
    for experiment, result in pairs:
        yield from (f"Failed{_label(experiment)}: {error}" for error in result.errors)


def reasons(rows: Iterable[tuple[str, Comparison]]) -> Iterator[str]:
    """Why our numbers are not the seed's; before each row is its variant."""
    figures_of: dict[Match, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for place, row in rows:
        if row.match in (Match.DIFFERENT, Match.NOT_COMPARABLE):
            why = row.why or "The scenario's file gives no reason."
            figures_of[row.match][why].append(f"{place} {row.figure}".strip())
    for match, whys in figures_of.items():
        for why, figures in whys.items():
            which = f" ({', '.join(figures)})" if len(whys) > 1 else ""
            yield f"{match.value.capitalize()}{which}: {why}"


def _label(experiment: Experiment) -> str:
    return "" if experiment.variant is None else f" ({experiment.variant})"


def _commands(pairs: Sequence[tuple[Experiment, Result]], usual: str) -> str:
    """The commands that measured the numbers, with what each has measured, if they are several."""
    runs: dict[tuple[str, str], list[tuple[Experiment, Result]]] = defaultdict(list)
    for experiment, result in pairs:
        runs[_command(result), result.commit or UNKNOWN].append((experiment, result))
    texts = []
    for (command, commit), members in runs.items():
        variants = ", ".join(e.variant for e, _ in members if e.variant is not None) if len(runs) > 1 else ""
        idle = min((result.idle.median for _, result in members if result.idle is not None), default=None)
        texts.append(
            (f"{variants}: " if variants else "")
            + f"`{command}`"
            + ("" if commit == usual else f" at {commit}")
            + (f", idle {number(idle)} %" if idle is not None and idle < BUSY else "")
        )
    return "; ".join(texts)


def _command(result: Result) -> str:
    return f"lab/mptcp-lab run {result.name.split(':')[0]} {options_of(result)}"


def options_of(result: Result) -> str:
    """The options of `lab/mptcp-lab run` that led to a result."""
    options = f"--kernel {result.kernel} --repeat {len(result.runs)}"
    if result.seed != 1:
        options += f" --seed {result.seed}"
    if result.time_scale != 1:
        options += f" --time-scale {result.time_scale:g}"
    return options


def _numbers(pairs: Sequence[tuple[Experiment, Result]]) -> dict[tuple[tuple[str, str], ...], list[list[str]]]:
    """A row, with its name, for each experiment, by the figures and units that it has."""
    tables: dict[tuple[tuple[str, str], ...], list[list[str]]] = defaultdict(list)
    for (experiment, result), name in zip(pairs, _names(pairs), strict=True):
        rows = compare(experiment.scenario, result.statistics) if result.statistics else []
        if rows:
            figures = tuple((row.figure, row.unit) for row in rows)
            tables[figures].append([name, *map(_cell, rows)])
    return tables


def _in_words(figures: Iterable[tuple[str, str]], cells: Iterable[str]) -> str:
    return "; ".join(f"{name} {cell} {unit}".rstrip() for (name, unit), cell in zip(figures, cells, strict=True))


def _names(pairs: Sequence[tuple[Experiment, Result]]) -> list[str]:
    """Without the set, under whose heading they stand; with the kernel, where there are results of several kernels."""
    results = Counter(experiment.name for experiment, _ in pairs)
    return [
        experiment.name.partition("/")[2] + (f" ({result.kernel})" if results[experiment.name] > 1 else "")
        for experiment, result in pairs
    ]


def _cell(row: Comparison) -> str:
    """Our number, and the seed's."""
    return ours_of(row) if row.seed is None else f"{ours_of(row)} {_SIGNS[row.match].format(number(row.seed))}"


def ours_of(row: Comparison) -> str:
    """Our number; with the range, where that is wider than the number."""
    if row.ours is not None and row.ours.most - row.ours.least > abs(row.ours.median):
        return spread(row.ours)
    return number(None if row.ours is None else row.ours.median)


def verdicts_of(pairs: Sequence[tuple[Experiment, Result]]) -> Iterator[tuple[Experiment, str, Verdict]]:
    """All verdicts, each with its experiment and kernel; variants are compared with those on the same kernel."""
    for kernel in dict.fromkeys(result.kernel for _, result in pairs):
        chosen = {experiment.name: (experiment, result) for experiment, result in pairs if result.kernel == kernel}
        statistics = {name: result.statistics for name, (_, result) in chosen.items()}
        verdicts = judge([experiment for experiment, _ in chosen.values()], kernel, statistics)
        for name, listed in verdicts.items():
            yield from ((chosen[name][0], kernel, verdict) for verdict in listed)


def _verdicts(pairs: Sequence[tuple[Experiment, Result]]) -> Iterator[str]:
    """Each expectation, with what was seen where it held, or in how many variants it held; and where it did not."""
    held: dict[str, list[tuple[str, str]]] = defaultdict(list)
    missed: list[str] = []
    for experiment, kernel, verdict in verdicts_of(pairs):
        place = ", ".join(filter(None, [experiment.variant, "" if kernel == Kernel.NATIVE else kernel]))
        seen = f"{verdict.seen} ({place})" if place else verdict.seen
        if verdict.held:
            held[verdict.sentence].append((verdict.expected, seen))
        else:
            missed.append(f"DID NOT HOLD: {verdict.expected}: {seen}.")
    texts = []
    for sentence, verdicts in held.items():
        of_each = {expected: [seen for other, seen in verdicts if other == expected] for expected, _ in verdicts}
        if len(verdicts) > FEW:
            texts.append(f"{sentence if len(of_each) > 1 else verdicts[0][0]}: in {len(verdicts)} variants")
        else:
            texts += [f"{expected}: {', '.join(values)}" for expected, values in of_each.items()]
    yield from (f"Held: {'; '.join(texts[at : at + _AT_ONCE])}." for at in range(0, len(texts), _AT_ONCE))
    yield from missed


def as_markdown(blocks: Sequence[Block], relative_to: Path) -> str:
    """The document in Markdown; pictures are linked from the directory `relative_to`."""
    return "\n\n".join(_markdown(block, relative_to) for block in blocks) + "\n"


def _markdown(block: Block, relative_to: Path) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {text}"
        case Paragraph(text):
            return text
        case Points(points):
            return "\n".join(line for point, below in points for line in (f"* {point}", *(f"  * {b}" for b in below)))
        case Table(headings, rows):
            heading, *lines = (
                "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (headings, *rows)
            )
            return "\n".join((heading, "|" + "---|" * len(headings), *lines))
        case Picture(path):
            return f"![chart]({os.path.relpath(path, relative_to)})"


def as_html(blocks: Sequence[Block], relative_to: Path) -> str:
    """The document as a page of HTML."""
    body = "\n".join(_html(block, relative_to) for block in blocks)
    return f'<!doctype html>\n<meta charset="utf-8"><style>{_STYLE}</style>\n{body}\n'


def _html(block: Block, relative_to: Path) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{html.escape(text)}</p>"
        case Points(points):
            return (
                "<ul>\n" + "\n".join(f"<li>{html.escape(p)}{_html_list(below)}</li>" for p, below in points) + "</ul>"
            )
        case Table(headings, rows):
            head = "".join(f"<th>{html.escape(cell)}</th>" for cell in headings)
            lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
            return f"<table><tr>{head}</tr>\n" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
        case Picture(path):
            return f'<img src="{html.escape(os.path.relpath(path, relative_to))}" width="900">'


def _html_list(texts: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in texts) + "</ul>" if texts else ""
