"""Scenario files: finding them, laying one over another, and their variants.

`base: FILE` lays a file over another one, `vary: {NAME: ...}` makes variants by laying something over the file, and
`vary: [{NAME: ...}, {NAME: ...}]` one variant for each choice of a name from every mapping. Mappings are merged,
everything else is replaced, and null takes a key away.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from mptcp_lab.scenario.quantities import Moment
from mptcp_lab.scenario.scenario_problems import problems
from mptcp_lab.scenario.scenario_schema import Scenario
from mptcp_throttle.config.validation import validate
from mptcp_throttle.config.yaml_file import KeyPath, YamlFile, dotted, read_yaml
from mptcp_throttle.errors import ConfigError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DIRECTORY: Final = Path(__file__).parents[2] / "scenarios"
"""Where the scenarios of the project are."""

_BASES: Final = "bases"
_MAX_BASES: Final = 10
_MAX_LISTED: Final = 10
_NOT_LAID: Final = ("base", "vary", "combined")
"""Keys of a file that say how it is laid over others; no scenario has them."""

_VARIANT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]*")


@dataclass(frozen=True, slots=True)
class Experiment:
    """A scenario, or a variant of one, under its name `SET/FILE` or `SET/FILE:VARIANT`."""

    family: str
    variant: str | None
    scenario: Scenario
    file: Path
    family_title: str

    @property
    def name(self) -> str:
        """`s0/throttle-sizes:50kB`."""
        return self.family if self.variant is None else f"{self.family}:{self.variant}"

    @property
    def argument(self) -> str:
        """What `chosen` finds it by, from any directory: its path, which need not be one of the project's."""
        return str(self.file) if self.variant is None else f"{self.file}:{self.variant}"


@dataclass(frozen=True, slots=True)
class _Layers:
    """Several YAML files as one document; every key knows the place of its value."""

    data: dict[str, object] = field(default_factory=dict)
    lines: dict[KeyPath, str] = field(default_factory=dict)
    scalars: dict[KeyPath, str] = field(default_factory=dict)

    def where(self, keys: KeyPath) -> str:
        """`FILE:LINE` of the innermost of these nested keys that is there."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return self.lines[keys]

    def under(self, file: YamlFile, prefix: KeyPath = ()) -> Self:
        """These with another layer: what `file` has at `prefix`."""
        over: Any = file.data
        for key in prefix:
            over = over[key]
        data, lines, scalars = dict(self.data), dict(self.lines), dict(self.scalars)
        _lay(data, {key: value for key, value in over.items() if key not in _NOT_LAID})
        for keys in file.lines:
            if keys[: len(prefix)] == prefix:
                # A list replaces the one below it, items and all.
                lines[keys[len(prefix) :]] = file.where(keys)
                if keys in file.scalars:
                    scalars[keys[len(prefix) :]] = file.scalars[keys]
                else:
                    scalars.pop(keys[len(prefix) :], None)
        return type(self)(data, lines, scalars)


def _lay(under: dict[str, object], over: Mapping[str, object]) -> None:
    for key, value in over.items():
        below = under.get(key)
        if value is None:
            under.pop(key, None)
        elif isinstance(below, dict) and isinstance(value, dict):
            under[key] = merged = dict(below)
            _lay(merged, value)
        else:
            under[key] = _without_nulls(value)


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return value


def available(directory: Path = DIRECTORY) -> dict[str, Path]:
    """The scenario files by name (`s0/throttle-1mbit`), sorted."""
    paths = (path for path in directory.glob("*/[!.]*.yaml") if path.parent.name != _BASES)
    return {f"{path.parent.name}/{path.stem}": path for path in sorted(paths)}


class _Change(NamedTuple):
    """What a variant changes: the mapping at these keys of a file."""

    file: YamlFile
    keys: KeyPath


def load(name: str, path: Path) -> tuple[Experiment, ...]:
    """The scenario of that file, or all its variants. Raises ConfigError with all problems, one line each."""
    files = _with_bases(read_yaml(path), _MAX_BASES)
    layers = _Layers()
    for file in files:
        layers = layers.under(file)
    title = str(layers.data.get("title", ""))  # of the file, whatever variants call themselves
    variants = _variants(files)
    if variants is None:
        return (Experiment(name, None, _scenario(layers), path.resolve(), title),)
    refused: list[str] = []
    experiments: list[tuple[Experiment, _Layers]] = []
    for variant, changes in variants.items():
        changed = layers
        for change in changes:
            changed = changed.under(change.file, change.keys)
        try:
            experiments.append((Experiment(name, variant, _scenario(changed), path.resolve(), title), changed))
        except ConfigError as error:
            refused += [problem for problem in error.problems if problem not in refused]
    refused += _reference_problems(experiments)
    if refused:
        raise ConfigError(refused)
    return tuple(experiment for experiment, _ in experiments)


def _with_bases(file: YamlFile, depth: int) -> list[YamlFile]:
    """The file after those that it is laid over."""
    base = file.data.get("base")
    if base is None:
        return [file]
    place = f"{file.where(('base',))}: base: {shown(base)}"
    if not isinstance(base, str):
        raise ConfigError([f"{place}: allowed: the path of a file, from here"])
    if depth == 0:
        raise ConfigError([f"{place}: is one base too many; allowed: up to {_MAX_BASES}, and no circle"])
    return [*_with_bases(read_yaml(file.path.parent / base), depth - 1), file]


def _variants(files: Sequence[YamlFile]) -> dict[str, list[_Change]] | None:
    """The variants by name, with what each changes; None if there are none. Raises ConfigError."""
    varying = next((file for file in reversed(files) if file.data.get("vary") is not None), None)
    combining = [file for file in files if file.data.get("combined") is not None]
    if varying is None:
        if combining:
            raise ConfigError([f"{combining[0].where(('combined',))}: combined: allowed: only beside vary"])
        return None
    given = varying.data["vary"]
    listed = list(enumerate(given)) if isinstance(given, list) else []
    choices = [_choices(varying, ("vary", number)) for number, _ in listed] or [_choices(varying, ("vary",))]
    variants: dict[str, list[_Change]] = {}
    for changes in product(*choices):
        name = "-".join(str(change.keys[-1]) for change in changes)
        if name in variants:
            raise ConfigError([f"{varying.where(('vary',))}: vary: two variants would be called {shown(name)}"])
        variants[name] = [*changes]
    for file in combining:
        for change in _choices(file, ("combined",)):
            name = str(change.keys[-1])
            if name not in variants:
                allowed = ", ".join([*variants][:_MAX_LISTED])
                raise ConfigError(
                    [f"{file.where(change.keys)}: combined: {shown(name)}: no such variant; allowed: {allowed}"]
                )
            variants[name].append(change)
    return variants


def _choices(file: YamlFile, keys: KeyPath) -> list[_Change]:
    """The named changes in the mapping at these keys. Raises ConfigError."""
    given: Any = file.data
    for key in keys:
        given = given[key]
    place = f"{file.where(keys)}: {dotted(keys)}"
    if not isinstance(given, dict) or not given:
        raise ConfigError([f"{place}: {shown(given)}: allowed: a mapping of variants, NAME: what it changes"])
    for name, changes in given.items():
        where = file.where((*keys, name))
        if not _VARIANT.fullmatch(name):
            allowed = "letters, digits and . + _ -, a letter or digit first"
            raise ConfigError([f"{where}: {dotted(keys)}: {shown(name)}: allowed: {allowed}"])
        if not isinstance(changes, dict) or any(key in changes for key in _NOT_LAID):
            allowed = f"a mapping of what it changes, without {', '.join(_NOT_LAID)}"
            raise ConfigError([f"{where}: {dotted((*keys, name))}: {shown(changes)}: allowed: {allowed}"])
    return [_Change(file, (*keys, name)) for name in given]


def _scenario(layers: _Layers) -> Scenario:
    scenario = validate(Scenario, layers)
    texts = []
    for keys, text in problems(scenario):
        value = f"{shown(layers.scalars[keys])}: " if keys in layers.scalars else ""
        texts.append(f"{layers.where(keys)}: {dotted(keys)}: {value}{text}")
    if texts:
        raise ConfigError(texts)
    return scenario


def _reference_problems(experiments: Sequence[tuple[Experiment, _Layers]]) -> list[str]:
    figures = {f"{e.variant}/{figure}" for e, _ in experiments for figure in e.scenario.report}
    reported = set()
    for experiment, layers in experiments:
        scenario = experiment.scenario
        relations = [
            *(("expect", name, section.of, section.to) for name, section in scenario.expect.items()),
            *(("effects", name, section.of, section.to) for name, section in scenario.effects.items()),
        ]
        for kind, name, of, to in relations:
            for key, reference in (("of", of), ("to", to)):
                if isinstance(reference, str) and "/" in reference and reference not in figures:
                    keys: KeyPath = (kind, name, key)
                    reported.add(
                        f"{layers.where(keys)}: {dotted(keys)}: {shown(reference)}: no variant has such a figure"
                    )
    return sorted(reported)


def chosen(names: Iterable[str], directory: Path = DIRECTORY) -> tuple[Experiment, ...]:
    """The experiments of these names: a set (`s0`), a scenario, a variant of one, or the path of a file.

    Raises ConfigError for a name that does not exist and for a file that is not valid.
    """
    known = available(directory)
    experiments: dict[str, Experiment] = {}
    refused: list[str] = []
    for name in names:
        family, _, variant = name.partition(":")  # so no path may contain a colon
        if family.endswith(".yaml"):
            path = Path(family)
            files = {f"{path.resolve().parent.name}/{path.stem}": path}
        else:
            files = {known_: path for known_, path in known.items() if family in (known_, known_.split("/")[0])}
        if not files:
            sets = ", ".join(sorted({known_.split("/")[0] for known_ in known}))
            refused.append(
                f"{name}: no such scenario; allowed: a set ({sets}), one of `list`, or the path of a .yaml file"
            )
        for known_, path in files.items():
            try:
                loaded = load(known_, path)
            except ConfigError as error:
                refused += error.problems
                continue
            wanted = [e for e in loaded if variant in ("", e.variant)]
            if not wanted:
                allowed = ", ".join(str(e.variant) for e in loaded if e.variant) or "no variant, it has none"
                refused.append(f"{name}: no such variant; allowed: {allowed}")
            experiments |= {e.name: e for e in wanted}
    if refused:
        raise ConfigError(refused)
    return tuple(experiments.values())


def scaled(scenario: Scenario, factor: float) -> Scenario:
    """The scenario with all its times and file sizes multiplied; rates, delays, queues and expectations stay."""

    def times(section: Any, *names: str) -> Any:  # noqa: ANN401
        values = {name: getattr(section, name) for name in names}
        return section.model_copy(
            update={
                k: v.scaled(factor) if isinstance(v, Moment) else v * factor for k, v in values.items() if v is not None
            }
        )

    flows = {
        name: times(flow, "start", "duration", "video").model_copy(
            update={} if flow.size is None else {"size": max(round(flow.size * factor), 1)}
        )
        for name, flow in scenario.flows.items()
    }
    return times(scenario, "duration", "until").model_copy(  # type: ignore[no-any-return]
        update={
            "flows": flows,
            "events": tuple(times(event, "at", "seconds") for event in scenario.events),
            "windows": {name: times(part, "begin", "end") for name, part in scenario.windows.items()},
            "report": {name: times(figure, "begin", "end") for name, figure in scenario.report.items()},
        }
    )
