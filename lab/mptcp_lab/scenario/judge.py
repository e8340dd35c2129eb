"""Statistics of repeated runs, compared with the seed's numbers and with the expectations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mptcp_lab.scenario.files import Experiment
    from mptcp_lab.scenario.scenario_schema import ExpectationSection, FigureSection, Scenario


AT_LIMIT: Final = 0.85
"""The share of its links' rates from which on a figure is bound by them; headers and acknowledgements take the rest."""


class Statistic(NamedTuple):
    """A figure over all runs that had it."""

    median: float
    least: float
    most: float
    runs: int


class Match(StrEnum):
    """How our number compares with the seed's; no evidence: both are what the links carry, or 0."""

    SAME = "same"
    DIFFERENT = "different"
    NOT_COMPARABLE = "not comparable"
    NO_EVIDENCE = "no evidence"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure beside the seed's, both in the scenario's scale; `match` is None where either is missing.

    `why` they are different, or not comparable.
    """

    figure: str
    unit: str
    ours: Statistic | None
    seed: float | None
    match: Match | None
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """An expectation's sentence, subject and bound, what was seen, and whether it held."""

    sentence: str
    subject: str
    bound: str
    seen: str
    held: bool

    @property
    def expected(self) -> str:
        """`Wi-Fi takes over: wifi-after / 56 ≥ 0.6`."""
        return f"{self.sentence}: {self.subject} {self.bound}"


def number(value: float | None) -> str:
    """Three figures, without an exponent."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 99.5 else f"{value:.3g}"


def summarise(values: Iterable[float | None]) -> Statistic | None:
    """Median and range; None if no run had the figure."""
    present = [value for value in values if value is not None]
    return Statistic(median(present), min(present), max(present), len(present)) if present else None


def compare(scenario: Scenario, statistics: Mapping[str, Statistic | None]) -> list[Comparison]:
    """All figures of the report beside the seed's."""
    return [_compare(scenario, name, figure, statistics.get(name)) for name, figure in scenario.report.items()]


def _compare(scenario: Scenario, name: str, figure: FigureSection, ours: Statistic | None) -> Comparison:
    seed = None if figure.seed is None else figure.seed.value
    if seed is not None and figure.unit == "Mb/s":
        seed /= scenario.scale
    match, why = None, ""
    if ours is not None and seed is not None:
        if figure.not_comparable is not None:
            match, why = Match.NOT_COMPARABLE, figure.not_comparable
        elif abs(ours.median - seed) <= seed * figure.within / 100:
            bound = limit_of(scenario, figure)
            is_bound = bound is not None and min(ours.median, seed) >= AT_LIMIT * bound
            match = Match.NO_EVIDENCE if is_bound or not ours.median else Match.SAME
        else:
            match, why = Match.DIFFERENT, figure.why or scenario.why or ""
    return Comparison(name, figure.unit, ours, seed, match, why)


def limit_of(scenario: Scenario, figure: FigureSection) -> float | None:
    """The sum of the rates of the links that bound a figure in Mb/s; None if none does, or one has no rate."""
    rates = [scenario.links[link].rate for link in figure.limits]
    if figure.unit != "Mb/s" or not rates:
        return None
    return sum(rate.bits_per_second / 1e6 for rate in rates if rate is not None) if None not in rates else None


def judge(
    experiments: Sequence[Experiment], kernel: str, statistics: Mapping[str, Mapping[str, Statistic | None]]
) -> dict[str, list[Verdict]]:
    """The verdicts per experiment, all on one kernel. What refers to a variant that did not run is left out."""
    known = {
        f"{experiment.family}:{experiment.variant}/{name}": statistic
        for experiment in experiments
        for name, statistic in statistics.get(experiment.name, {}).items()
    }
    return {e.name: list(_verdicts(e, kernel, known)) for e in experiments if e.name in statistics}


def _verdicts(experiment: Experiment, kernel: str, known: Mapping[str, Statistic | None]) -> Iterator[Verdict]:
    for text, expectation in experiment.scenario.expect.items():
        keys = [_key(experiment, reference) for reference in (expectation.of, expectation.to)]
        elsewhere = expectation.kernel not in (None, kernel)
        if elsewhere or any(isinstance(key, str) and key not in known for key in keys):
            continue
        above, below = (_value(key, known) for key in keys)
        unit = _unit(experiment.scenario, expectation)
        expected = text, _subject(expectation), _bound(expectation, unit)
        if above is None or below is None:
            yield Verdict(*expected, "was not measured", held=False)
        elif expectation.near is not None:
            difference = abs(above - below)
            yield Verdict(*expected, f"{number(above)} and {number(below)}{unit}", difference <= expectation.near)
        elif below == 0:
            yield Verdict(*expected, f"{number(above)} of nothing", held=expectation.at_most is None and above > 0)
        else:
            ratio = above / below
            low, high = expectation.at_least, expectation.at_most
            held = (low is None or ratio >= low) and (high is None or ratio <= high)
            yield Verdict(*expected, f"{number(ratio)}{unit}", held)


def _key(experiment: Experiment, reference: float | str) -> float | str:
    if not isinstance(reference, str):
        return reference
    if "/" in reference:
        return f"{experiment.family}:{reference}"
    return f"{experiment.family}:{experiment.variant}/{reference}"


def _value(key: float | str, known: Mapping[str, Statistic | None]) -> float | None:
    if not isinstance(key, str):
        return key
    statistic = known[key]
    return None if statistic is None else statistic.median


def _subject(expectation: ExpectationSection) -> str:
    if expectation.near is not None:
        return f"{expectation.of} and {_short(expectation.to)}"
    return str(expectation.of) if expectation.to == 1 else f"{expectation.of} / {_short(expectation.to)}"


def _bound(expectation: ExpectationSection, unit: str) -> str:
    if expectation.near is not None:
        return f"differ by ≤ {expectation.near:g}{unit}"
    if expectation.at_most is None:
        return f"≥ {expectation.at_least:g}{unit}"
    if expectation.at_least is None:
        return f"≤ {expectation.at_most:g}{unit}"
    return f"is {expectation.at_least:g} to {expectation.at_most:g}{unit}"


def _unit(scenario: Scenario, expectation: ExpectationSection) -> str:
    """The unit of a figure that is not divided, with a blank before it."""
    figure = scenario.report.get(expectation.of) if isinstance(expectation.of, str) else None
    is_divided = expectation.to != 1 and expectation.near is None
    return f" {figure.unit}" if figure is not None and figure.unit and not is_divided else ""


def _short(reference: float | str) -> str:
    return reference if isinstance(reference, str) else f"{reference:g}"
