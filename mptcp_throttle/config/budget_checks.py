"""What the keys of budgets must be for each other, in the file of an access network or of a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mptcp_throttle.config.network_schema import PeriodSection
from mptcp_throttle.config.yaml_file import KeyPath, YamlFile
from mptcp_throttle.model import Budget, Every
from mptcp_throttle.units import format_share
from mptcp_throttle.when import WEEKDAYS


def period_problems(file: YamlFile, sections: Sequence[PeriodSection]) -> Iterator[str]:
    """The starts of budgets that do not fit the length of their periods, or that have no periods."""
    allowed = {
        Every.DAY: "null, as a day begins at midnight",
        Every.WEEK: f"null, or one of {', '.join(WEEKDAYS)}",
        Every.MONTH: "null, or a number from 1 to 31",
    }
    for index, budget in enumerate(sections):
        if budget.rolling and (budget.starts is not None or budget.rollover):
            besides = " and ".join(key for key in ("starts", "rollover") if getattr(budget, key))
            place = f"{file.place('budgets', index, 'rolling')}: true"
            yield f"{place}: has no periods, and so no {besides}; allowed: false, or without {besides}"
            continue
        fitting = {Every.DAY: type(None), Every.WEEK: str | None, Every.MONTH: int | None}[budget.every]
        if not isinstance(budget.starts, fitting):
            place = f"{file.place('budgets', index, 'starts')}: {budget.starts}"
            yield f"{place}: does not fit every: {budget.every}; allowed: {allowed[budget.every]}"


def budget_problems(file: YamlFile, budgets: Sequence[Budget], choice: str) -> Iterator[str]:
    """What is wrong in budgets each of whose keys is valid by itself; `choice` are the keys that tell them apart."""
    for index, budget in enumerate(budgets):
        place, parts = file.place("budgets", index), [stage.at for stage in budget.stages]
        if _chosen_by(budget) in map(_chosen_by, budgets[:index]):
            yield f"{place}: has the {choice} of an earlier budget; allowed: one such budget"
        if parts != sorted(set(parts)):
            texts = ", ".join(map(format_share, parts))
            yield f"{file.place('budgets', index, 'then')}: at {texts}: allowed: each once, the lowest first"
        for number, stage in enumerate(budget.stages):
            if not stage.rates:
                place = file.place(*stage_key(file, index, number))
                yield f"{place}: has no rate; allowed: cap, limit and uplink in it"


def stage_key(file: YamlFile, index: int, number: int) -> KeyPath:
    """The key of a stage: `then` is a list, or the only stage."""
    keys = "budgets", index, "then"
    return (*keys, number) if (*keys, 0) in file.lines else keys


def _chosen_by(budget: Budget) -> tuple[str, ...]:
    return budget.per, budget.counting, budget.every
