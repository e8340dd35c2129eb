"""Results that are kept in the repository: a table per set of scenarios, a row per figure, a column per run."""

from __future__ import annotations

import csv
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_lab.lab_errors import LabError
from mptcp_lab.scenario.fingerprint import SET_UP
from mptcp_lab.scenario.results import FILE, Result, Run, read_results

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

# With a blank, unlike the names of figures.
_DURATION: Final = "duration of run"
_IDLE: Final = "idle share"
_ERROR: Final = "why it failed"


class _Place(NamedTuple):
    """What a row is about, and what its numbers depend on; the columns before the figure."""

    scenario: str
    variant: str
    kernel: str
    release: str
    congestion_control: str
    processors: str
    commit: str
    time_scale: str
    seed: str


_COLUMNS: Final = (*_Place._fields, "figure", "fingerprint")


def write_kept(directory: Path, results: Iterable[Result]) -> list[Path]:
    """`SET.csv` per set of the results, which have to be in the order of the rows."""
    paths = []
    for name, members in groupby(results, key=lambda result: result.name.partition("/")[0]):
        rows = [row for result in members for row in _rows(result)]
        columns = max(map(len, rows))
        runs = columns - len(_COLUMNS)
        path = directory / f"{name}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*_COLUMNS, *(f"run_{number}" for number in range(1, runs + 1))])
            writer.writerows([*row, *[""] * (columns - len(row))] for row in rows)
        paths.append(path)
    return paths


def _rows(result: Result) -> Iterator[list[str]]:
    scenario, _, variant = result.name.partition(":")
    place = _Place(
        scenario,
        variant,
        result.kernel,
        result.release,
        result.congestion_control,
        str(result.processors),
        result.commit,
        f"{result.time_scale:g}",
        str(result.seed),
    )
    of = result.fingerprints
    for figure in result.statistics:
        yield [*place, figure, of.get(figure, ""), *(_text(run.figures.get(figure)) for run in result.runs)]
    set_up = of.get(SET_UP, "")
    yield [*place, _DURATION, set_up, *(_text(run.seconds) for run in result.runs)]
    yield [*place, _IDLE, set_up, *(_text(run.idle) for run in result.runs)]
    if result.errors:
        yield [*place, _ERROR, set_up, *(run.error or "" for run in result.runs)]


def _text(value: float | None) -> str:
    return "" if value is None else str(round(value, 4))


def read_all(directory: Path) -> list[Result]:
    """The results that are kept in a directory, else those that runs have left below it. Raises LabError."""
    tables = sorted(directory.glob("*.csv"))
    # The directory of an experiment has tables, too: its samples.
    if not tables or (directory / FILE).exists():
        return read_results(directory)
    return [result for path in tables for result in _read_kept(path)]


def _read_kept(path: Path) -> list[Result]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header, *lines = csv.reader(file)
        if tuple(header[: len(_COLUMNS)]) != _COLUMNS:
            raise ValueError(f"its columns are not {', '.join(_COLUMNS)}")
        places = groupby(lines, key=lambda line: _Place(*line[: len(_Place._fields)]))
        return [_result(place, [line[len(_Place._fields) :] for line in rows], path) for place, rows in places]
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise LabError(f"{path}: is not a table of kept results: {error}") from error


def _result(place: _Place, rows: Iterable[Sequence[str]], path: Path) -> Result:
    lines = [*rows]
    values = {figure: texts for figure, _, *texts in lines}
    of_rows = {figure: fingerprint for figure, fingerprint, *_ in lines}
    durations, idle = values.pop(_DURATION), values.pop(_IDLE)
    errors = values.pop(_ERROR, [""] * len(durations))
    runs = [
        Run(
            figures={name: _number(texts[number]) for name, texts in values.items()},
            seconds=float(duration),
            idle=float(idle[number]),
            events=(),
            error=errors[number] or None,
        )
        for number, duration in enumerate(durations)
        if duration
    ]
    return Result(
        name=f"{place.scenario}:{place.variant}" if place.variant else place.scenario,
        file=f"{place.scenario}.yaml",
        commit=place.commit,
        kernel=place.kernel,
        release=place.release,
        congestion_control=place.congestion_control,
        processors=int(place.processors),
        time_scale=float(place.time_scale),
        seed=int(place.seed),
        runs=runs,
        directory=path.parent,
        fingerprints={SET_UP: of_rows[_DURATION]} | {name: of_rows[name] for name in values},
    )


def _number(text: str) -> float | None:
    return float(text) if text else None
