"""The cited lines of the seeds, without their text: which numbers are on each, and a digest of it.

The seeds are not part of the project. `lab/mptcp-lab seeds DIRECTORY` reads them there.
It compares the table with them, or writes it.
"""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_lab.lab_errors import LabError
from mptcp_lab.scenario.files import available, load
from mptcp_lab.scenario.seed_section import Seed, numbers_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mptcp_lab.scenario.files import Experiment

TABLE: Final = Path(__file__).parents[2] / "seeds.csv"
"""Where the project has the numbers of the lines that its scenarios cite."""

_COLUMNS: Final = ("seed", "line", "digest", "numbers")
_DIGITS: Final = 12


class SeedLine(NamedTuple):
    """A digest of a line's text, and its numbers in their order."""

    digest: str
    numbers: tuple[float, ...]


Place = tuple[Seed, int]
"""A line of a seed."""


def experiments() -> list[Experiment]:
    """The project's experiments that repeat something of a seed."""
    return [e for name, path in available().items() for e in load(name, path) if e.scenario.seed is not None]


def cited(of: Iterable[Experiment]) -> set[Place]:
    """The lines that scenarios cite."""
    places: set[Place] = set()
    for experiment in of:
        scenario = experiment.scenario
        if scenario.seed is None:
            continue
        lists = [scenario.seed.lines, *(effect.lines for effect in scenario.effects.values())]
        numbers = [figure.seed.line for figure in scenario.report.values() if figure.seed is not None]
        lines = [line for listed in lists for part in listed for line in part.each()]
        places |= {(scenario.seed.document, line) for line in (*numbers, *lines)}
    return places


def contradictions(of: Iterable[Experiment], table: Mapping[Place, SeedLine]) -> Iterator[str]:
    """Each number that a scenario says is on a line of its seed, and is not."""
    for experiment in of:
        scenario, seed = experiment.scenario, experiment.scenario.seed
        if seed is None:
            continue
        for figure, section in scenario.report.items():
            if section.seed is not None:
                value, line = section.seed.written, section.seed.line
                if (seed.document, line) not in table or value not in table[seed.document, line].numbers:
                    yield f"{experiment.name}: {figure}: {value:g} is not on line {line} of {seed.document}"
        texts = {"finding": (seed.finding, seed.lines)}
        texts |= {sentence: (sentence, effect.lines) for sentence, effect in scenario.effects.items()}
        for name, (text, lines) in texts.items():
            places = [(seed.document, line) for part in lines for line in part.each()]
            yield from (
                f"{experiment.name}: {name}: there is no line {n} of {s}" for s, n in places if (s, n) not in table
            )
            there = {found for place in places if place in table for found in table[place].numbers}
            for value in numbers_in(text):
                if value not in there:
                    yield f"{experiment.name}: {name}: {value:g} is on none of its lines of {seed.document}"


def read_seeds(directory: Path, places: Iterable[Place]) -> dict[Place, SeedLine]:
    """These lines, from the files `S0-*.txt` and so on. Raises LabError if a file or a line is missing."""
    texts: dict[Seed, list[str]] = {}
    for seed in Seed:
        paths = sorted(directory.glob(f"{seed}-*.txt"))
        if len(paths) != 1:
            raise LabError(f"{directory}: has {len(paths)} files {seed}-*.txt; allowed: one of each seed")
        texts[seed] = paths[0].read_bytes().decode("utf-8").split("\n")
    found: dict[Place, SeedLine] = {}
    for seed, line in sorted(places):
        if line > len(texts[seed]):
            raise LabError(f"{directory}: {seed} has no line {line}, only {len(texts[seed])}")
        text = texts[seed][line - 1].strip("\r\f")
        found[seed, line] = SeedLine(hashlib.sha256(text.encode()).hexdigest()[:_DIGITS], tuple(numbers_in(text)))
    return found


def write_table(table: Mapping[Place, SeedLine], path: Path = TABLE) -> None:
    """The table of the lines."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for (seed, line), found in sorted(table.items()):
            writer.writerow([seed, line, found.digest, " ".join(f"{value:.12g}" for value in found.numbers)])


def read_table(path: Path = TABLE) -> dict[Place, SeedLine]:
    """The table of the lines. Raises LabError if it is not one."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [*csv.DictReader(file)]
        return {
            (Seed(row["seed"]), int(row["line"])): SeedLine(row["digest"], tuple(map(float, row["numbers"].split())))
            for row in rows
        }
    except (OSError, ValueError, KeyError) as error:
        raise LabError(f"{path}: is not a table of the seeds' lines: {error}") from error
