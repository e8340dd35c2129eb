"""Validation of YAML files by pydantic models: one error line per problem, with what is allowed instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Final, Protocol, TypeGuard, TypeVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainValidator, ValidationError
from pydantic_core import ErrorDetails

from mptcp_throttle.config.yaml_file import KeyPath, dotted
from mptcp_throttle.errors import ConfigError, shown
from mptcp_throttle.units import Rate, not_decimal, parse_duration

NAME_PATTERN: Final = "[a-z0-9][a-z0-9_-]{0,31}"
"""The name of an access network or of a proxy, as a regular expression."""

_MAPPING: Final = "allowed: lines of the form `option: value`"
_NOT_A_MAPPING: Final = frozenset({"model_type", "dict_type"})

_T = TypeVar("_T")
_Choice = TypeVar("_Choice", bound=StrEnum)


def parsed_by(parse: Callable[[str], _T], *, at_least: str | None = None, or_null: bool = False) -> PlainValidator:
    """A validator: `parse` converts the text; `at_least` is the lowest allowed value, as text.

    `or_null`: the key may be null instead, as the error message then says.
    """
    null = "; or null for none" if or_null else ""

    def validate(value: object) -> _T:
        try:
            result = parse(str(value))
        except ValueError as error:
            raise ValueError(f"{error}{null}") from error
        if at_least is not None and result < parse(at_least):  # type: ignore[operator]
            raise ValueError(f"is too small; allowed: {at_least} or more{null}")
        return result

    return PlainValidator(validate)


def one_of(choices: type[_Choice]) -> PlainValidator:
    """A validator: one of these words."""

    def validate(value: object) -> _Choice:
        try:
            return choices(str(value))
        except ValueError as error:
            raise ValueError(f"allowed: {', '.join(choices)}") from error

    return PlainValidator(validate)


def whole(lowest: int, highest: int) -> PlainValidator:
    """A validator: a whole number in this range, bounds included."""

    def validate(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise ValueError(f"{not_decimal(str(value))}allowed: a whole number from {lowest} to {highest}")
        return value

    return PlainValidator(validate)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("allowed: true or false")
    return value


def is_text(value: object) -> TypeGuard[str]:
    """Whether the value is non-empty text of printable characters."""
    return isinstance(value, str) and value != "" and value.isprintable()


def text_that(is_allowed: Callable[[str], object], allowed: str) -> PlainValidator:
    """A validator: text that `is_allowed` accepts; `allowed` describes it in the error message."""

    def validate(value: object) -> str:
        if not is_text(value) or not is_allowed(value):
            raise ValueError(f"allowed: {allowed}")
        return value

    return PlainValidator(validate)


def is_name(text: str) -> bool:
    """Whether it can be the name of an access network or of a proxy."""
    return re.fullmatch(NAME_PATTERN, text) is not None


def list_of(noun: str, most: int, least: int = 1) -> BeforeValidator:
    """A validator: a list of `least` to `most` items, called `noun`."""

    def validate(value: object) -> object:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise ValueError(f"allowed: a list of {least} to {most} {noun}")
        return value

    return BeforeValidator(validate)


def mapping_of(noun: str, most: int) -> BeforeValidator:
    """A validator: a mapping with 1 to `most` names of items, called `noun`."""

    def validate(value: object) -> object:
        if not isinstance(value, dict) or not 1 <= len(value) <= most:
            raise ValueError(f"allowed: 1 to {most} {noun} by their names")
        return value

    return BeforeValidator(validate)


def each_once(values: tuple[_T, ...]) -> tuple[_T, ...]:
    """A validator: no value twice."""
    if len(set(values)) < len(values):
        raise ValueError("allowed: each of them once")
    return values


RateOrNull = Annotated[Rate, parsed_by(Rate.parse, or_null=True)] | None
DurationText = Annotated[float, parsed_by(parse_duration)]
Flag = Annotated[bool, PlainValidator(_flag)]
Name = Annotated[str, text_that(is_name, "up to 32 of a-z, 0-9, - and _, no - or _ first")]


class Section(BaseModel):
    """A mapping without other keys than these."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_Model = TypeVar("_Model", bound=Section)


class Document(Protocol):
    """Data with the line of each value: a YamlFile, or several of them merged."""

    @property
    def data(self) -> Mapping[str, object]:
        """The mapping to validate."""

    @property
    def lines(self) -> Container[KeyPath]:
        """The key paths that the document contains."""

    @property
    def scalars(self) -> Mapping[KeyPath, str]:
        """The text of every scalar."""

    def where(self, keys: KeyPath) -> str:
        """`FILE:LINE` of the innermost of these nested keys that the document contains."""


def validate(model: type[_Model], document: Document) -> _Model:
    """The document as a `model`. Raises ConfigError with all problems found, one line each."""
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        raise ConfigError([_explain(model, document, detail) for detail in error.errors()]) from error


def attempt(problems: list[str], load: Callable[..., _T], *arguments: object) -> _T | None:
    """The result of `load`; None if it raises ConfigError, whose problems are added to `problems`."""
    try:
        return load(*arguments)
    except ConfigError as error:
        problems += error.problems
        return None


def _explain(model: type[Section], document: Document, detail: ErrorDetails) -> str:
    of_model = tuple(key for key in detail["loc"] if isinstance(key, str | int))
    keys = _written_keys(document, of_model)
    while keys and keys not in document.lines and detail["type"] != "missing":
        keys = keys[:-1]  # pydantic appends the name of the union member
    prefix = f"{document.where(keys)}: {dotted(keys)}:"
    if detail["type"] == "missing":
        return f"{prefix} is required; {_allowed_at(model, of_model)}"
    value = detail["input"]
    # As written in the file: the parsed value would show a mask in decimal, and `no` as False.
    written = document.scalars.get(keys)
    quoted = shown(value) if isinstance(value, str) or written is None else written[:60] or "null"
    if detail["type"] == "extra_forbidden":
        return f"{prefix} {quoted}: unknown key; allowed: {', '.join(_keys_beside(model, of_model))}"
    if detail["type"] in _NOT_A_MAPPING:
        return f"{prefix} {quoted}: is not a mapping; {_MAPPING}"
    return f"{prefix} {quoted}: {detail['ctx']['error']}"


def _written_keys(document: Document, keys: Iterable[str | int]) -> KeyPath:
    """The keys without the index of the only item of a list that is written without the list."""
    written: KeyPath = ()
    for key in keys:
        if key != 0 or (*written, key) in document.lines:
            written = (*written, key)
    return written


def _allowed_at(model: type[Section], keys: KeyPath) -> str:
    """What the error about a value that is not allowed there says is allowed."""
    section, key = _section_with(model, keys), keys[-1]
    try:
        (section or model).model_validate({key: None})
    except ValidationError as error:
        (detail,) = [each for each in error.errors() if each["loc"][0] == key]
        if detail["type"] not in _NOT_A_MAPPING:
            return "allowed: " + str(detail["ctx"]["error"]).rpartition("allowed: ")[2]
    return _MAPPING


def _keys_beside(model: type[Section], keys: KeyPath) -> list[str]:
    """The keys that are allowed in the section in which `keys` ends."""
    section = _section_with(model, keys)
    return [] if section is None else sorted(field.alias or name for name, field in section.model_fields.items())


def _section_with(annotation: object, keys: KeyPath) -> type[Section] | None:
    """The section of the type `annotation` in which `keys` ends."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        fields = {field.alias or name: field.annotation for name, field in annotation.model_fields.items()}
        if len(keys) == 1:
            return annotation
        return _section_with(fields[str(keys[0])], keys[1:]) if keys[0] in fields else None
    container = get_origin(annotation) in {dict, tuple}
    inner = (_section_with(argument, keys[1:] if container else keys) for argument in reversed(get_args(annotation)))
    return next((section for section in inner if section is not None), None)
