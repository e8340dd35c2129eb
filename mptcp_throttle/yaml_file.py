"""YAML with line numbers: what a good error message about a configuration file needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from mptcp_throttle.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A parsed file: its mapping, and the line (from 1) of every key path."""

    path: Path
    data: dict[str, object]
    lines: dict[KeyPath, int]

    def where(self, keys: KeyPath) -> str:
        """`FILE:LINE` of the innermost of these nested keys that the file contains."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return f"{self.path}:{self.lines[keys]}"


def read_yaml(path: Path) -> YamlFile:
    """Read a file that must hold one mapping.

    Raises ConfigError if it is unreadable, empty, not YAML, no mapping, or names a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: is not UTF-8 text (byte {error.start})"]) from error
    except yaml.YAMLError as error:
        raise ConfigError([_describe_yaml_error(path, error)]) from error
    if root is None:
        raise ConfigError([f"{path}: is empty; allowed: a mapping of options"])
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError([f"{path}:1: is not a mapping; allowed: lines of the form `option: value`"])
    lines: dict[KeyPath, int] = {}
    for keys, node in _walk(root, ()):
        if keys in lines:
            raise ConfigError([f"{path}:{_line(node)}: {dotted(keys)}: is given twice (first in line {lines[keys]})"])
        lines[keys] = _line(node)
    return YamlFile(path, data, lines)


def dotted(keys: KeyPath) -> str:
    """`proxy.ports[0]` for ("proxy", "ports", 0)."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _walk(node: yaml.Node, keys: KeyPath) -> Iterator[tuple[KeyPath, yaml.Node]]:
    yield keys, node
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            for inner, inner_node in _walk(value, (*keys, str(key.value))):
                yield inner, key if inner == (*keys, str(key.value)) else inner_node
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _walk(value, (*keys, index))


def _describe_yaml_error(path: Path, error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{path}:{error.problem_mark.line + 1}: is not valid YAML: {error.problem}"
    return f"{path}: is not valid YAML: {str(error).splitlines()[0]}"
