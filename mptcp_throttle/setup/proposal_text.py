"""The proposal in a configuration file: in the present one, or in the one of the package."""

from __future__ import annotations

import os
from typing import Final

import yaml

from mptcp_throttle.config.load import load_config
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import ConfigError, UserError
from mptcp_throttle.setup.line_ends import with_line_ends_of, without_carriage_returns
from mptcp_throttle.setup.proposal import Proposal
from mptcp_throttle.setup.proposed_value import Value
from mptcp_throttle.setup.shipped_files import MAIN_FILE, NETWORK_FILES, shipped
from mptcp_throttle.setup.staged_files import staged
from mptcp_throttle.setup.yaml_edit import set_value

_MISSING: Final = object()
_UNCHANGEABLE: Final = (
    "setup: the configuration cannot be changed line by line: it is invalid (`mptcp-throttle check-config` says why),"
    " or has sections in braces; allowed: correct it, or move it away"
)


def proposed_text(proposal: Proposal, present: str | None) -> str:
    """The file that `setup` proposes, where `present` is the present one; None if there is none.

    The one of the package gets all values, with their reasons; one that has been edited only those that differ. The
    result passes `loaded`. Raises UserError if an edited file is invalid, or cannot be changed line by line.
    """
    default = shipped(MAIN_FILE)
    before = default if present is None else without_carriage_returns(present)
    text = _with(before, proposal, only_different=before != default)
    if text is None:
        if before == default:
            raise AssertionError("the configuration of the package cannot be changed in its text")
        raise UserError(_UNCHANGEABLE, os.EX_CONFIG)
    return text if present is None else with_line_ends_of(present, text)


def _with(text: str, proposal: Proposal, *, only_different: bool) -> str | None:
    try:
        loaded(text)
        for value in proposal.values:
            wanted = _comparable(yaml.safe_load(value.text))
            if only_different and (
                _effective(text, value) == wanted or (value.only_over_default and not _is_default(text, value))
            ):
                continue
            changed = set_value(text, value.keys, value.text, value.reason, value.alternative)
            if changed is None or _present(changed, value) != wanted:
                return None
            text = changed
        loaded(text)
    except (ConfigError, yaml.YAMLError):
        return None
    return text


def _effective(text: str, value: Value) -> object:
    """What counts at the keys of a value: without them, what the file of the package has, which are the defaults."""
    found = _present(text, value)
    return _present(shipped(MAIN_FILE), value) if found is _MISSING else found


def _is_default(text: str, value: Value) -> bool:
    return _effective(text, value) == _present(shipped(MAIN_FILE), value)


def _present(text: str, value: Value) -> object:
    found = yaml.safe_load(text)
    for key in value.keys[:-1]:
        found = found.get(key) if isinstance(found, dict) else None
    for name in (value.keys[-1], value.alternative):
        if isinstance(found, dict) and name in found:
            return _comparable(found[name])
    return _MISSING


def _comparable(value: object) -> object:
    """One interface is as good as a list of one; and the order of a list, such as that of the ports, means nothing."""
    return sorted(value, key=str) if isinstance(value, list) else [value]


def loaded(text: str) -> Config:
    """The configuration of this text with the access networks of the package, whatever directory of networks it names.

    Raises ConfigError, and UserError if temporary files cannot be written.
    """
    networks = {name: shipped(name) for name in NETWORK_FILES}
    with staged({MAIN_FILE: text, **networks}) as directory:
        return load_config(directory / MAIN_FILE, [directory / name for name in networks])
