"""A set of results as a short document: some lines per experiment, and the commands once per set."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from mptcp_lab.scenario.effects import Shown, counts_of_effects, effects_of, lines_of
from mptcp_lab.scenario.judge import Match, compare, number
from mptcp_lab.scenario.report import (
    BUSY,
    FEW,
    SETS,
    UNKNOWN,
    Heading,
    Paragraph,
    Points,
    Table,
    by_family,
    by_set,
    counts_of,
    introduction,
    options_of,
    ours_of,
    reasons,
    scales_of,
    seed_of,
    shortened,
    usual_commit,
    verdicts_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mptcp_lab.scenario.effects import Effect
    from mptcp_lab.scenario.files import Experiment
    from mptcp_lab.scenario.judge import Comparison
    from mptcp_lab.scenario.report import Block
    from mptcp_lab.scenario.results import Result

_LINE: Final = 380
"""Characters in a line, nearly."""


def make_summary(
    pairs: Sequence[tuple[Experiment, Result]], command: str, experiments: Sequence[Experiment] | None = None
) -> list[Block]:
    """The document. `command` is what printed it; `experiments` are all of the sets, measured or not."""
    usual = usual_commit(pairs)
    families: dict[str, list[Experiment]] = defaultdict(list)
    for experiment in experiments or {experiment.name: experiment for experiment, _ in pairs}.values():
        families[experiment.family].append(experiment)
    effects = {name: list(effects_of(by_family(pairs).get(name, []), members)) for name, members in families.items()}
    blocks: list[Block] = [
        *introduction(
            pairs,
            "For each experiment of a seed, an earlier system: its findings, ours, and whether expectations hold.\n"
            f"Printed by `{command}`; that directory has the figures of each run.",
            "Numbers are medians, with a range where it is wider; rates are in Mb/s.",
            "*Reproduced* and *not reproduced*: a finding of the seed as a relation between two of our figures.",
            "`a ≈ b`: our number is a, and the seed's is b; they differ by at most 25 %, or what the scenario allows.",
            "`a ≠ b`: they differ by more. `a (seed b)`: they cannot be compared.",
            "*No evidence*, *the link's*: both figures are what the links carry, or 0.",
            "`rates / 10`: the scenario's rates are the seed's divided by 10.",
            "*Held*: an expectation of the scenario, with the figure or ratio of figures that it is about.",
            f"*Idle*: below {BUSY} % the processors were the limit, and not the network.",
        ),
        Table(
            ("findings of the seed", "in all", *Shown),
            [
                [SETS.get(name, name), *counts_of_effects(of_set)]
                for name, _ in by_set(pairs)
                if (of_set := [e for f, listed in effects.items() if in_set(f, name) for e in listed])
            ],
        ),
        Table(
            ("numbers of the seed", "in all", *(match.value for match in Match), "expectations", "not held"),
            [_counts(name, members) for name, members in by_set(pairs)],
        ),
    ]
    for name, members in by_set(pairs):
        measured = by_family(members)
        blocks += (
            Heading(2, SETS.get(name, name)),
            Paragraph("\n".join(_commands(name, measured, usual))),
            Points(
                [
                    (
                        _found(listed, measured.get(family, [])),
                        [*_findings(listed, measured.get(family, []), effects[family])],
                    )
                    for family, listed in families.items()
                    if in_set(family, name)
                ]
            ),
        )
    return blocks


def in_set(family: str, name: str) -> bool:
    """Whether an experiment is of a set."""
    return family.partition("/")[0] == name


def _counts(name: str, pairs: Sequence[tuple[Experiment, Result]]) -> list[str]:
    held = [verdict.held for _, _, verdict in verdicts_of(pairs)]
    return [*counts_of(name, pairs), str(len(held)), str(held.count(False))]


def _commands(name: str, families: Mapping[str, Sequence[tuple[Experiment, Result]]], usual: str) -> Iterator[str]:
    """The command that measured most experiments of a set; then the others, with what each has measured."""
    runs: dict[tuple[str, str], dict[str, list[tuple[Experiment, Result]]]] = defaultdict(lambda: defaultdict(list))
    for family, pairs in families.items():
        for experiment, result in pairs:
            runs[options_of(result), result.commit or UNKNOWN][family].append((experiment, result))
    most = max(runs, key=lambda run: len(runs[run]))
    for run in sorted(runs, key=lambda run: run != most):
        options, commit = run
        text = f"`lab/mptcp-lab run {name} {options}`" if run == most else f"With `{options}`"
        text += "" if commit == usual else f" at {commit}"
        if run != most:
            text += f": {', '.join(_which(families[family], pairs) for family, pairs in runs[run].items())}"
        yield f"{text}."


def _which(family: Sequence[tuple[Experiment, Result]], measured: Sequence[tuple[Experiment, Result]]) -> str:
    """A whole family, or some of its variants."""
    name = measured[0][0].family.partition("/")[2]
    if len(measured) == len(family):
        return name
    return f"{name} ({', '.join(str(experiment.variant) for experiment, _ in measured)})"


def _found(experiments: Sequence[Experiment], pairs: Sequence[tuple[Experiment, Result]]) -> str:
    """The name, and what the seed found."""
    scales = sorted({result.time_scale for _, result in pairs} - {1})
    changes = [*scales_of(experiments), *(f"times and sizes * {scale:g}" for scale in scales)]
    family = experiments[0].family.partition("/")[2]
    name = f"**{family}**" + (f" ({', '.join(changes)})" if changes else "")
    return f"{name}: {next(seed_of(experiments), experiments[0].family_title)}"


def _findings(
    experiments: Sequence[Experiment], pairs: Sequence[tuple[Experiment, Result]], effects: Iterable[Effect]
) -> Iterator[str]:
    """What was set up otherwise; ours; which findings and expectations hold; why numbers differ; what failed."""
    yield from [*seed_of(experiments)][1:]
    names = {experiment.name for experiment, _ in pairs}
    missing = [experiment.variant or "all of it" for experiment in experiments if experiment.name not in names]
    if missing:
        yield f"Not measured at this set-up: {shortened(missing)}."
    lacking = dict.fromkeys(
        name
        for experiment, result in pairs
        for name, figure in experiment.scenario.report.items()
        if figure.seed is not None and _lacks(result, name)
    )
    if lacking:
        yield f"Figures not measured at this set-up: {', '.join(lacking)}."
    yield from lines_of(effects)
    results = Counter(experiment.name for experiment, _ in pairs)
    places = [
        ", ".join(filter(None, [experiment.variant, result.kernel if results[experiment.name] > 1 else None]))
        for experiment, result in pairs
    ]
    rows = [
        (place, row)
        for (experiment, result), place in zip(pairs, places, strict=True)
        for row in compare(experiment.scenario, result.statistics)
        if row.seed is None or not _lacks(result, row.figure)
    ]
    held, missed = _verdicts(pairs)
    compared = [(place, row) for place, row in rows if row.seed is not None]
    figures = list(_figures(compared or ([] if held or missed else rows)))
    idle = min((result.idle.median for _, result in pairs if result.idle is not None), default=None)
    busy = [f"idle {number(idle)} %"] if idle is not None and idle < BUSY else []
    yield from _lines("Ours", figures + busy)
    yield from _lines("Held", held)
    yield from missed
    yield from reasons(compared)
    for (_, result), place in zip(pairs, places, strict=True):
        yield from (f"FAILED{f' ({place})' if place else ''}: {error}" for error in result.errors)


def _lacks(result: Result, figure: str) -> bool:
    """Whether runs that did not fail have not measured the figure, which is newer."""
    return not result.errors and figure not in result.statistics


def _lines(label: str, texts: Iterable[str]) -> Iterator[str]:
    """The texts after the label, in as many lines as they take."""
    line = ""
    for text in texts:
        if line and len(line) + len(text) >= _LINE:
            yield f"{line}."
            line = ""
        line = f"{line}; {text}" if line else f"{label}: {text}"
    if line:
        yield f"{line}."


def _figures(rows: Iterable[tuple[str, Comparison]]) -> Iterator[str]:
    """Each figure, with our number and the seed's, by variant."""
    figures: dict[tuple[str, str], list[str]] = defaultdict(list)
    for place, row in rows:
        seed = "" if row.seed is None else f"seed {number(row.seed)}"
        seed += ", the link's" if row.match is Match.NO_EVIDENCE else ""
        sign = {Match.SAME: "≈", Match.DIFFERENT: "≠"}.get(row.match) if row.match is not None else None
        text = ours_of(row) + (f" {sign} {number(row.seed)}" if sign is not None else "")
        aside = ", ".join(filter(None, [place, "" if sign is not None else seed]))
        figures[row.figure, row.unit].append(f"{text} ({aside})" if aside else text)
    for (figure, unit), texts in figures.items():
        yield figure + (f" ({unit}) " if unit not in ("", "Mb/s") else " ") + ", ".join(texts)


def _verdicts(pairs: Sequence[tuple[Experiment, Result]]) -> tuple[list[str], list[str]]:
    """The expectations that held, with what was seen, or in how many variants; and those that did not."""
    held: dict[str, list[str]] = defaultdict(list)
    missed = []
    for experiment, _, verdict in verdicts_of(pairs):
        place = "" if experiment.variant is None else f" ({experiment.variant})"
        if verdict.held:
            held[verdict.sentence].append(f"{verdict.seen} {verdict.bound}{place}")
        else:
            missed.append(f"DID NOT HOLD: {verdict.expected}: {verdict.seen}{place}.")
    texts = [
        f"{sentence}: " + (f"in {len(seen)} variants" if len(seen) > FEW else ", ".join(seen))
        for sentence, seen in held.items()
    ]
    return texts, missed
