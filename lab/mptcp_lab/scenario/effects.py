"""The seeds' findings as relations between figures, and whether our measurements show them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from mptcp_lab.scenario.judge import AT_LIMIT, limit_of, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mptcp_lab.scenario.files import Experiment
    from mptcp_lab.scenario.results import Result
    from mptcp_lab.scenario.seed_section import EffectSection

LEAST_IDLE: Final = 10.0
"""Idle share in percent; below it, the processors were the limit, and not the network."""


class Shown(StrEnum):
    """What our measurements say of a finding."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    NOT_COMPARABLE = "cannot be compared"
    NO_EVIDENCE = "no evidence"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Effect:
    """A finding's sentence, in which variant it is judged, what ours show, the relation, and why."""

    sentence: str
    variant: str | None
    shown: Shown
    relation: str
    why: str = ""


class Side(NamedTuple):
    """A measured figure: its median, the rates that bound it in Mb/s, and the idle share in percent; None: unknown."""

    median: float
    limit: float | None
    idle: float | None

    @property
    def is_bound(self) -> bool:
        """Whether its links carry no more."""
        return self.limit is not None and self.median >= AT_LIMIT * self.limit


def effects_of(pairs: Sequence[tuple[Experiment, Result]], experiments: Iterable[Experiment]) -> Iterator[Effect]:
    """The findings of these experiments of one family; variants are compared as they were measured on one kernel."""
    measured = {(e.variant, result.kernel): (e, result) for e, result in pairs}
    for experiment in experiments:
        kernel = next((result.kernel for e, result in pairs if e.name == experiment.name), None)
        for sentence, effect in experiment.scenario.effects.items():
            sides = [_side(experiment, reference, kernel, measured) for reference in (effect.of, effect.to)]
            shown, why = judged(effect, *sides)
            yield Effect(sentence, experiment.variant, shown, _relation(effect, *sides), why)


def judged(effect: EffectSection, of: Side | None, to: Side | None) -> tuple[Shown, str]:
    """What two measured figures say of a finding, and why if it is not reproduced."""
    if effect.not_comparable is not None:
        return Shown.NOT_COMPARABLE, effect.not_comparable
    if of is None or to is None:
        return Shown.NOT_MEASURED, ""
    if any(side.idle is not None and side.idle < LEAST_IDLE for side in (of, to)):
        return Shown.NOT_COMPARABLE, "the processors were the limit, and not the network"
    if of.median == to.median == 0:
        return Shown.NO_EVIDENCE, "both are 0"
    if _links_decide(effect, of, to):
        return Shown.NO_EVIDENCE, "the links carry no more"
    if _holds(effect, of.median, to.median):
        return Shown.REPRODUCED, ""
    return Shown.NOT_REPRODUCED, effect.because or "no reason is known"


def _links_decide(effect: EffectSection, of: Side, to: Side) -> bool:
    """Whether both figures have the same limit, which alone makes the relation hold, or not hold."""
    if of.limit is None or of.limit != to.limit or not to.is_bound or effect.apart is not None:
        return False
    low, high = effect.at_least, effect.at_most
    if low is not None and low > 1:
        return True
    return of.is_bound and (low is None or low > AT_LIMIT) and (high is None or high >= AT_LIMIT)


def _holds(effect: EffectSection, of: float, to: float) -> bool:
    if effect.apart is not None:
        return max(of, to) >= effect.apart * min(of, to)
    at_least = effect.at_least is None or of >= effect.at_least * to
    return at_least and (effect.at_most is None or of <= effect.at_most * to)


def _side(
    experiment: Experiment,
    reference: str | None,
    kernel: str | None,
    measured: Mapping[tuple[str | None, str], tuple[Experiment, Result]],
) -> Side | None:
    if reference is None or kernel is None:
        return None
    place, _, name = reference.rpartition("/")
    there, result = measured.get((place or experiment.variant, kernel), (None, None))
    statistic = None if result is None else result.statistics.get(name)
    if there is None or result is None or statistic is None:
        return None
    idle = None if result.idle is None else result.idle.median
    return Side(statistic.median, limit_of(there.scenario, there.scenario.report[name]), idle)


def _relation(effect: EffectSection, of: Side | None, to: Side | None) -> str:
    """`total / two/total 0.76 ≤ 0.9`."""
    if effect.of is None:
        return ""
    bounds = (("≥", effect.at_least), ("≤", effect.at_most), ("apart by ≥", effect.apart))
    bound = " and ".join(f"{sign} {value:g}" for sign, value in bounds if value is not None)
    seen = ""
    if of is not None and to is not None:
        pair = (max(of.median, to.median), min(of.median, to.median)) if effect.apart else (of.median, to.median)
        seen = f" {number(pair[0] / pair[1])}" if pair[1] else f" {number(pair[0])} of nothing"
    return f"{effect.of} / {effect.to}{seen} {bound}"


def lines_of(effects: Iterable[Effect]) -> Iterator[str]:
    """A sentence for each finding; those that are not measured share one."""
    unmeasured = []
    for effect in effects:
        place = "" if effect.variant is None else f" ({effect.variant})"
        if effect.shown is Shown.NOT_MEASURED:
            unmeasured.append(f"{effect.sentence}{place}")
        else:
            texts = (f"{effect.sentence}{place}", effect.relation, effect.why)
            yield f"*{effect.shown.capitalize()}*: {': '.join(filter(None, texts)).rstrip('.')}."
    if unmeasured:
        yield f"*{Shown.NOT_MEASURED.capitalize()}*: {'; '.join(unmeasured)}."


def counts_of_effects(effects: Iterable[Effect]) -> list[str]:
    """How many there are, and how many of each kind."""
    shown = [effect.shown for effect in effects]
    return [str(len(shown)), *(str(shown.count(kind)) for kind in Shown)]
