"""YAML with line numbers, for error messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from mptcp_throttle.config.text_file import read_text_file
from mptcp_throttle.errors import ConfigError, shown

KeyPath = tuple[str | int, ...]

_MOST_BYTES: Final = 1 << 20
"""PyYAML takes more than a second for so many."""

_PLAIN_KEY: Final = re.compile(r"[^\W_][\w-]{0,59}")
_TEXT: Final = "tag:yaml.org,2002:str"
_NUMBER: Final = "tag:yaml.org,2002:int"
_TYPES: Final = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool"))
_DECIMAL: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)$")


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A parsed file: its mapping, the line (from 1) of every key path, and the text of every scalar."""

    path: Path
    data: dict[str, object]
    lines: dict[KeyPath, int]
    scalars: dict[KeyPath, str]

    def where(self, keys: KeyPath) -> str:
        """`FILE:LINE` of the innermost of these nested keys that the file contains."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return f"{self.path}:{self.lines[keys]}"

    def place(self, *keys: str | int) -> str:
        """`FILE:LINE: KEY`, with which a problem of this key begins."""
        return f"{self.where(keys)}: {dotted(keys)}"


def read_yaml(path: Path) -> YamlFile:
    """Read a file that contains one mapping. Raises ConfigError as `read_yaml_text` and `parse_yaml` do."""
    return parse_yaml(path, read_yaml_text(path))


def read_yaml_text(path: Path) -> str:
    """The text of a file. Raises ConfigError if it is unreadable."""
    try:
        return read_text_file(path, _MOST_BYTES)
    except ValueError as error:
        raise ConfigError([f"{path}: {error}"]) from error


def parse_yaml(path: Path, text: str) -> YamlFile:
    """The file with this text, which contains one mapping.

    Keys are text; values are null, bool, int, text, lists and mappings.

    Raises ConfigError if it is empty, not YAML, no mapping, or names a key twice.
    """
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        data: Any = None if root is None else loader.construct_document(root)
    except yaml.YAMLError as error:
        raise ConfigError([_describe_yaml_error(path, error)]) from error
    except RecursionError as error:
        raise ConfigError([f"{path}: is nested too deeply; allowed: options, and sections of options"]) from error
    if root is None:
        raise ConfigError([f"{path}: is empty; allowed: a mapping of options"])
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError([f"{path}:1: is not a mapping; allowed: lines of the form `option: value`"])
    lines: dict[KeyPath, int] = {}
    scalars: dict[KeyPath, str] = {}
    for keys, line, node in _walk(root, (), _line(root)):
        if keys in lines:
            first = f"first in line {lines[keys]}"
            raise ConfigError([f"{path}:{line}: {dotted(keys)}: is given twice ({first}); allowed: each key once"])
        lines[keys] = line
        if isinstance(node, yaml.ScalarNode):
            scalars[keys] = node.value
    return YamlFile(path, data, lines, scalars)


def dotted(keys: KeyPath) -> str:
    """`proxy.ports[0]` for ("proxy", "ports", 0); a key that is no name is quoted as values are."""
    names = (key if isinstance(key, int) or _PLAIN_KEY.fullmatch(key) else shown(key) for key in keys)
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in names).lstrip(".")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _walk(node: yaml.Node, keys: KeyPath, line: int) -> Iterator[tuple[KeyPath, int, yaml.Node]]:
    yield keys, line, node
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _walk(value, (*keys, key.value), _line(key))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _walk(value, (*keys, index), _line(value))


class _Loader(yaml.SafeLoader):
    """YAML without dates, floats, aliases and merge keys. `010` and `0x50` are text: few expect 8 and 80."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _TYPES]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not allowed", problem_mark=mark)
        node = super().compose_node(parent, index)
        is_key = isinstance(parent, yaml.MappingNode) and index is None
        if is_key and node is not None:
            node.tag = _TEXT
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError) as error:
            # PyYAML raises these for `0b_`, `!!bool maybe` and a number of 5000 digits.
            problem = f"{str(node.value)[:40]!r} is not a value of its type"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error


_Loader.add_implicit_resolver(_NUMBER, _DECIMAL, list("-+0123456789"))


def _describe_yaml_error(path: Path, error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{path}:{error.problem_mark.line + 1}: is not valid YAML: {error.problem}"
    return f"{path}: is not valid YAML: {str(error).splitlines()[0]}"
