"""The keys of the configuration in Markdown: what the shipped files say of them, and what the schema allows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Final, TypeGuard, get_args

import yaml
from pydantic import ValidationError

from commented_yaml import Entry, Setting, parse
from markdown_text import code, prose, with_named_units
from mptcp_throttle.config.changes import services_to_restart
from mptcp_throttle.config.network_schema import DeviceFile, NetworkFile, ReplacingRatesSection, ReplacingUplinkSection
from mptcp_throttle.config.schema import ServiceFile
from mptcp_throttle.config.validation import Section
from mptcp_throttle.rpc import Json

_SERVICES: Final = Path("config/mptcp-throttle.yaml")
_NETWORK: Final = Path("config/networks.d/lte.yaml")
_DEVICE: Final = Path("config/examples/clients.d/alices-phone.yaml")
_RELOAD: Final = " (reload)"
_DOCUMENT: Final = re.compile(r"docs/(\S+\.md)")
_EITHER: Final = {
    "proxy.interface": "proxy.interfaces",
    "proxy.interfaces": "proxy.interface",
    "proxies": "proxy",
    "subnets": "subnets_file",
    "subnets_file": "subnets",
}
"""Keys of which a file needs one of two."""

_CHOSEN: Final[dict[tuple[type[Section], str], str]] = {(DeviceFile, "networks"): "NETWORK"}
"""Keys below which the operator chooses names, and what these are the names of."""

_NO_VALUE: Final = object()
"""What no key allows."""


def keys() -> dict[str, list[str]]:
    """The keys of each of the three kinds of files, in the order of the file."""
    return {
        "mptcp-throttle.yaml": _described(_SERVICES, ServiceFile, services_to_restart),
        "networks.d": _described(_NETWORK, NetworkFile, lambda _: ()),
        "clients.d": _described(_DEVICE, DeviceFile, lambda _: ()),
    }


def _described(file: Path, schema: type[Section], restarts: Callable[[str], tuple[str, ...]]) -> list[str]:
    text = file.read_text(encoding="utf-8")
    entries = parse(text)[1]
    lines: list[str] = []
    named: set[str] = set()
    for entry in entries:
        settings = list(_with_alternatives(entry))
        paths = [_general(schema, setting.path) for setting in settings]
        if named.issuperset(paths):
            continue  # the same for another access network
        named.update(paths)
        words = [line.removesuffix(_RELOAD) for line in entry.lines if line != _RELOAD.strip()]
        if words != entry.lines and any(map(restarts, paths)):
            raise ValueError(f"{file}: {paths[0]}: a reload does not apply it")
        lines += [*([""] if lines else []), f"### {', '.join(paths)}", ""]
        values = [setting for setting in settings if not _is_section(schema, setting.path)]
        if values:
            is_part = len(values) < len(settings)
            lines += [*_facts(values, schema, yaml.safe_load(text), restarts(paths[0]), is_part=is_part), ""]
        lines += [_DOCUMENT.sub(r"[\1](../\1)", line) for line in prose(words)]
    missing = set(_leaves(schema)) - named
    if missing:
        raise ValueError(f"{file}: has not: {', '.join(sorted(missing))}")
    return lines


def _with_alternatives(entry: Entry) -> Iterator[Setting]:
    for setting in entry.settings:
        yield setting
        if setting.path == "proxy.interface":
            yield Setting(_EITHER[setting.path], None)
        if setting == Setting("proxy", None):
            yield Setting("proxies", None)


def _general(schema: type[Section], path: str) -> str:
    """The path with the kind of each name that the operator chooses, in its place."""
    first, *rest = path.split(".")
    return ".".join([first, _CHOSEN[schema, first], *rest[1:]]) if rest and (schema, first) in _CHOSEN else path


def _owner(schema: type[Section], path: str) -> tuple[type[Section] | None, str]:
    """The section in which a path ends, None if the operator chooses the names there; and its last key."""
    *outer, last = path.split(".")
    annotation: object = schema
    for key in outer:
        annotation = annotation.model_fields[key].annotation if _is_schema(annotation) else get_args(annotation)[1]
    return (annotation if _is_schema(annotation) else None), last


def _is_schema(annotation: object) -> TypeGuard[type[Section]]:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _is_section(schema: type[Section], path: str) -> bool:
    owner, key = _owner(schema, path)
    return owner is None or _is_schema(owner.model_fields[key].annotation) or (schema, path) in _CHOSEN


def _leaves(schema: type[Section], above: str = "") -> Iterator[str]:
    for name, field in schema.model_fields.items():
        if _is_schema(field.annotation):
            yield from _leaves(field.annotation, f"{above}{name}.")
        elif (schema, name) in _CHOSEN:
            yield from _leaves(get_args(field.annotation)[1], f"{above}{name}.{_CHOSEN[schema, name]}.")
        else:
            yield f"{above}{name}"


def _facts(
    settings: list[Setting], schema: type[Section], data: Json, restart: tuple[str, ...], *, is_part: bool
) -> list[str]:
    """The default, what is allowed, and what applies a change: in one line if all `settings` have that in common.

    `is_part`: the entry explains more than these settings.
    """
    change = f"restart {', '.join(restart)}" if restart else "reload"
    facts = []
    for setting in settings:
        allowed = _short(with_named_units(_allowed(schema, data, setting.path)))
        facts.append(f"{_default(schema, setting)}; {allowed}; {change}")
    if len(set(facts)) == 1 and not is_part:
        return facts[:1]
    return [f"* {code(setting.path)}: {fact}" for setting, fact in zip(settings, facts, strict=True)]


def _short(allowed: str) -> str:
    """Without what the default shows, too."""
    return (
        re.sub(r", such as [^,;]*", "", allowed).replace("true or false", "boolean").replace("a whole number from ", "")
    )


def _allowed(schema: type[Section], data: Json, path: str) -> str:
    """What the errors about values that are not allowed say is allowed."""
    words = _refusals(schema, data, path, _NO_VALUE)
    if words[0].startswith("a list of"):
        words += _refusals(schema, data, path, [_NO_VALUE])
        return f"{words[0]}; each {words[1] if len(words) > 1 else 'with the keys below'}"
    if "null" not in words[0] and not _refusals(schema, data, path, None):
        return f"{words[0]}; or null"
    return words[0]


def _refusals(schema: type[Section], data: Json, path: str, value: object) -> list[str]:
    changed = deepcopy(data)
    *outer, key = path.split(".")
    section = changed
    for name in outer:
        section = section[name]
    section[key] = value
    try:
        schema.model_validate(changed)
    except ValidationError as error:
        texts = (str(detail.get("ctx", {}).get("error", "")) for detail in error.errors())
        return [match[1] for text in texts if (match := re.search(r"allowed: (.*)", text))]
    return []


def _default(schema: type[Section], setting: Setting) -> str:
    owner, key = _owner(schema, setting.path)
    if owner is None:
        raise ValueError(f"{setting.path}: is chosen by the operator")
    field = owner.model_fields[key]
    if setting.path in _EITHER and not field.get_default(call_default_factory=True):
        return f"this or {code(_EITHER[setting.path])} is required"
    if field.is_required():
        return "required"
    if issubclass(owner, (ReplacingRatesSection, ReplacingUplinkSection)):
        return "that of the network"
    if field.default is None:
        return code("null")
    if setting.value is None or _value(owner, key, setting.value) != field.default:
        raise ValueError(f"{setting.path}: the file has another value than the default")
    return code(setting.value)


def _value(schema: type[Section], key: str, written: str) -> object:
    """What the schema makes of a value."""
    made: dict[str, object] = {}
    if any(field.is_required() for field in schema.model_fields.values()):
        file = {NetworkFile: _NETWORK, DeviceFile: _DEVICE}.get(schema, _SERVICES)
        made = yaml.safe_load(file.read_text(encoding="utf-8"))
    return getattr(schema.model_validate({**made, key: yaml.safe_load(written)}), key)
