"""Changes values of a YAML file in its text, so that comments, order and everything else stay."""

from __future__ import annotations

import re
import textwrap
from typing import Final

import yaml

_REASON: Final = "# setup:"
"""What the lines begin with that give the reason for the value below them."""

_WIDTH: Final = 120


def set_value(text: str, keys: tuple[str, ...], value: str, reason: str, alternative: str | None = None) -> str | None:
    """The text with `value`, which is YAML on one line, at `keys` (one or two), and its reason in comments above.

    An earlier reason there is replaced, and so is the key `alternative` of the same section. None if the text is in a
    style that cannot be changed in this way.
    """
    section = _block(yaml.compose(text, yaml.SafeLoader))
    for key in keys[:-1]:
        if section is None:
            return None
        pair = _pair(section, key)
        if pair is None:
            comment = "".join(f"  {line}\n" for line in _comment(reason, 2))
            return f"{text.rstrip()}\n\n{key}:\n{comment}  {keys[-1]}: {value}\n"
        section = _block(pair[1])
    if section is None:
        return None
    pair = _pair(section, keys[-1]) or (None if alternative is None else _pair(section, alternative))
    if pair is None:
        return _add(text, section, f"{keys[-1]}: {value}", reason, is_root=len(keys) == 1)
    return _replace(text, pair, f"{keys[-1]}: {value}", reason)


def _block(node: yaml.Node | None) -> yaml.MappingNode | None:
    """The mapping, if it is one in block style with at least one key."""
    return node if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value else None


def _pair(mapping: yaml.MappingNode, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    return next((pair for pair in mapping.value if pair[0].value == key), None)


def _comment(reason: str, indent: int) -> list[str]:
    return [f"{_REASON} {line}" for line in textwrap.wrap(reason, _WIDTH - indent - len(_REASON) - 1)]


def _add(text: str, section: yaml.MappingNode, line: str, reason: str, *, is_root: bool) -> str:
    """With a new line before the first key of a section, or after all else."""
    first = section.value[0][0].start_mark
    indent = " " * first.column
    lines = "".join(f"{indent}{one}\n" for one in (*_comment(reason, first.column), line))
    if is_root:
        return f"{text.rstrip()}\n\n{lines}"
    begin = text.rindex("\n", 0, first.index) + 1
    # Comments above the first key are about that.
    begin = len(re.sub(r"(?:^[ \t]*(?:#.*)?\n)+\Z", "", text[:begin], flags=re.MULTILINE))
    return text[:begin] + lines + text[begin:]


def _replace(text: str, pair: tuple[yaml.Node, yaml.Node], line: str, reason: str) -> str:
    key, node = pair
    after_colon = text.index(":", key.end_mark.index) + 1
    end = max(_end(node), after_colon)
    changed = text[: key.start_mark.index] + line + text[end:]
    begin = text.rfind("\n", 0, key.start_mark.index) + 1
    indent = text[begin : key.start_mark.index]
    head = re.sub(rf"(?:^[ \t]*{re.escape(_REASON)}.*\n)+\Z", "", text[:begin], flags=re.MULTILINE)
    comment = "".join(f"{indent}{line}\n" for line in _comment(reason, len(indent)))
    return head + comment + changed[begin:]


def _end(node: yaml.Node) -> int:
    """Where the text of a value ends: a collection in block style has the beginning of what follows as its end."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(node, yaml.MappingNode) else last)
    return int(node.end_mark.index)
