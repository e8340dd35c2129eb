"""What a figure depends on, as a short text: a result counts only for the set-up at which it was measured."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mptcp_throttle.config.validation import Section

if TYPE_CHECKING:
    from mptcp_lab.scenario.results import Result
    from mptcp_lab.scenario.scenario_schema import Scenario

SET_UP: Final = ""
"""The name under which the fingerprint of the set-up alone is."""

_SET_UP: Final = frozenset(
    {"hosts", "links", "in_order", "duration", "until", "interval", "throttle", "controller", "flows", "events"}
    | {"windows"}
)
_OF_NUMBERS: Final = frozenset({"seed", "within", "not_comparable", "why", "limit"})
"""Keys of a figure that do not change what is measured."""
_DIGITS: Final = 10


def fingerprints(scenario: Scenario) -> dict[str, str]:
    """The fingerprint of the set-up, and by figure that of the set-up with what the figure measures."""
    set_up = _described(scenario, frozenset(type(scenario).model_fields) - _SET_UP)
    figures = {name: _described(figure, _OF_NUMBERS) for name, figure in scenario.report.items()}
    return {SET_UP: _digest(set_up)} | {name: _digest(set_up + figure) for name, figure in figures.items()}


def _described(value: object, without: frozenset[str] = frozenset()) -> str:
    """The text of all values that are not the default, so that a new key with a default changes nothing."""
    if isinstance(value, Section):
        fields = type(value).model_fields.items()
        defaults = {name: field.get_default(call_default_factory=True) for name, field in fields if name not in without}
        given = {name: getattr(value, name) for name in defaults}
        return _described({name: inner for name, inner in given.items() if inner != defaults[name]})
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_described(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ",".join(map(_described, value)) + "]"
    return str(value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def at_this_set_up(result: Result, scenario: Scenario) -> Result | None:
    """The result with those figures only that the scenario still measures; None if the set-up is another one."""
    now = fingerprints(scenario)
    if result.fingerprints.get(SET_UP) != now[SET_UP]:
        return None
    kept = {name for name, fingerprint in result.fingerprints.items() if now.get(name) == fingerprint}
    runs = [
        replace(run, figures={name: value for name, value in run.figures.items() if name in kept})
        for run in result.runs
    ]
    return replace(result, runs=runs)
