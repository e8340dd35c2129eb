"""The proposal in the text of a configuration file: the present file, or the file that the package installs.

Only the values change: comments, order and everything else stay.
"""

from __future__ import annotations

import os
import re
import textwrap
from typing import Final

import yaml

from mptcp_throttle.config.load import load_config
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import ConfigError, UserError
from mptcp_throttle.setup.kept_files import (
    MAIN_FILE,
    NETWORK_FILES,
    normalized,
    shipped,
    staged,
    with_line_ends_of,
)
from mptcp_throttle.setup.proposal import Proposal, Value

_REASON: Final = "# setup:"
"""With this begin the lines that give the reason for the value below them."""
_WIDTH: Final = 120
_UNCHANGEABLE: Final = (
    "setup: the configuration cannot be changed line by line: it is invalid (`mptcp-throttle check-config` says why),"
    " or has sections in braces; allowed: correct it, or move it away"
)


def proposed_text(proposal: Proposal, present: str | None) -> str:
    """The text that `setup` proposes for the configuration file, whose present text is `present`, None without a file.

    The file of the package gets all values with their reasons; an edited file gets only values that differ. The result
    passes `loaded`. Raises UserError if an edited file is invalid, or cannot be changed line by line.
    """
    default = shipped(MAIN_FILE)
    before = default if present is None else normalized(present)
    text = _with(before, proposal, default)
    if text is None:
        raise UserError(_UNCHANGEABLE, os.EX_CONFIG)
    return text if present is None else with_line_ends_of(present, text)


def _with(text: str, proposal: Proposal, default: str) -> str | None:
    is_edited = text != default
    try:
        has_proxies = loaded(text).proxies.are_named
        for value in proposal.values:
            # What several proxies have is not proposed.
            if has_proxies and value.keys[0] == "proxy":
                continue
            wanted = _comparable(yaml.safe_load(value.text))
            by_default = _present(default, value)
            present = _present(text, value)
            if present is None:
                present = by_default
            if is_edited and (present == wanted or (value.only_over_default and present != by_default)):
                continue
            changed = set_value(text, value.keys, value.text, value.reason, value.alternative)
            if changed is None or _present(changed, value) != wanted:
                return None
            text = changed
        loaded(text)
    except (ConfigError, yaml.YAMLError):
        return None
    return text


def _present(text: str, value: Value) -> list[object] | None:
    """What a file has at the keys of a value, as `_comparable` returns it; None if it does not have them."""
    section = yaml.safe_load(text)
    for key in value.keys[:-1]:
        section = section.get(key) if isinstance(section, dict) else None
    for name in (value.keys[-1], value.alternative):
        if isinstance(section, dict) and name in section:
            return _comparable(section[name])
    return None


def _comparable(value: object) -> list[object]:
    """A list, in order, as the order of ports or interfaces means nothing; a single value is a list of that value."""
    return sorted(value, key=str) if isinstance(value, list) else [value]


def loaded(text: str) -> Config:
    """The configuration of this text with the access networks of the package, whatever directory of networks it names.

    Raises ConfigError, and UserError if temporary files cannot be written.
    """
    networks = {name: shipped(name) for name in NETWORK_FILES}
    with staged({MAIN_FILE: text, **networks}) as directory:
        return load_config(directory / MAIN_FILE, [directory / name for name in networks])


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
    """The node, if it is a mapping in block style with at least one key."""
    return node if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value else None


def _pair(mapping: yaml.MappingNode, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    return next((pair for pair in mapping.value if pair[0].value == key), None)


def _comment(reason: str, indent: int) -> list[str]:
    return [f"{_REASON} {line}" for line in textwrap.wrap(reason, _WIDTH - indent - len(_REASON) - 1)]


def _add(text: str, section: yaml.MappingNode, line: str, reason: str, *, is_root: bool) -> str:
    """The text with a new line: before the first key of the section, or at the end for the root."""
    first = section.value[0][0].start_mark
    indent = " " * first.column
    lines = "".join(f"{indent}{added}\n" for added in (*_comment(reason, first.column), line))
    if is_root:
        return f"{text.rstrip()}\n\n{lines}"
    begin = text.rindex("\n", 0, first.index) + 1
    # Comments above the first key are about that.
    begin = len(re.sub(r"(?:^[ \t]*(?:#.*)?\n)+\Z", "", text[:begin], flags=re.MULTILINE))
    return text[:begin] + lines + text[begin:]


def _replace(text: str, pair: tuple[yaml.Node, yaml.Node], line: str, reason: str) -> str:
    key, node = pair
    end = max(_end(node), text.index(":", key.end_mark.index) + 1)
    changed = text[: key.start_mark.index] + line + text[end:]
    begin = text.rfind("\n", 0, key.start_mark.index) + 1
    indent = text[begin : key.start_mark.index]
    head = re.sub(rf"(?:^[ \t]*{re.escape(_REASON)}.*\n)+\Z", "", text[:begin], flags=re.MULTILINE)
    comment = "".join(f"{indent}{line}\n" for line in _comment(reason, len(indent)))
    return head + comment + changed[begin:]


def _end(node: yaml.Node) -> int:
    """Where the text of a value ends. For PyYAML, a collection in block style ends where the next token begins."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(node, yaml.MappingNode) else last)
    return int(node.end_mark.index)
